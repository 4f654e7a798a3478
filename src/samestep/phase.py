"""Phase: what this rank is doing now, told to whoever watches, at less than a microsecond a change.

A rank that called `open` shares 24 bytes of memory; `enter` writes to them, and another process on the
machine reads them, whatever the rank is stuck in. Without `open` every call is a no-op. Knows names and a
clock; nothing of training, of other ranks or of what a long phase means.

The memory belongs to no file on disk: writing to a mapped file waits for the disk now and then, and a save
would then slow down the steps beside it. The file at `path` only says where the memory is found; it is gone
with the process.

Two words and a check are written, `what ^ began ^ _CHECK`. A reader that comes in the middle sees old and new
words mixed; the check fits only if the word that it should not have seen is the same in both.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, get_args

Name = Literal["data", "forward", "backward", "exchange", "update", "other"]
Detail = Literal["start-up", "evaluation", "checkpoint", "hooks", "waiting for other ranks"]

_LAYOUT: Final = struct.Struct("=QQQ")
_CHECK: Final = 0x5A3E57E900000001  # memory that was never written to, all zeros, does not pass
_MEMORY: Final = "samestep-phase"
_STEP_AT: Final = 16
_NAMES: Final[tuple[Name, ...]] = get_args(Name)
_DETAILS: Final[tuple[Detail | None, ...]] = (None, *get_args(Detail))
_NAME_BITS: Final[dict[Name, int]] = {name: code for code, name in enumerate(_NAMES)}
_DETAIL_BITS: Final[dict[Detail | None, int]] = {detail: code << 8 for code, detail in enumerate(_DETAILS)}
_MOST_READS: Final = 100

_memory: mmap.mmap | None = None
_what = _NAME_BITS["other"]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What a rank does, and since when; `began_s` is on the clock of `time.monotonic`.

    `step` is the step that it works on or works towards, counted from 1; None before the first.
    """

    name: Name
    detail: Detail | None
    step: int | None
    began_s: float
    pid: int

    @property
    def is_waiting(self) -> bool:
        """Whether the rank has done its part and only waits for what others do."""
        return self.name == "exchange" or self.detail == "waiting for other ranks"

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        step = f" of step {self.step}" if self.step else ""
        return f"{self.name}{detail}{step}"


def open(path: Path) -> None:
    """Tell the phases of this process to whoever reads `path`, from "other (start-up)" on."""
    global _memory
    close()
    try:
        descriptor = os.memfd_create(_MEMORY)
    except (AttributeError, OSError):
        return  # not on Linux: nobody watches there either
    os.ftruncate(descriptor, _LAYOUT.size)
    _memory = mmap.mmap(descriptor, _LAYOUT.size)
    enter("other", step=0, detail="start-up")
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(f"/proc/{os.getpid()}/fd/{descriptor}\n")
    half.replace(path)


def close() -> None:
    """Tell nothing any more."""
    global _memory
    _memory = None


def enter(name: Name, *, step: int | None = None, detail: Detail | None = None) -> None:
    """Mark the beginning of a phase; without `step`, of the same step as before."""
    global _what
    if _memory is None:
        return
    kept = _what >> _STEP_AT if step is None else step
    _what = kept << _STEP_AT | _DETAIL_BITS[detail] | _NAME_BITS[name]
    _write(_memory, _what)


class waiting:
    """`with phase.waiting():` is the exchange with other ranks; then the phase goes on that was before."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _what
        enter("exchange")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _what
        if _memory is not None:
            _what = self._before
            _write(_memory, _what)


def read(path: Path) -> Phase | None:
    """The phase that a process tells at `path`; None if there is none, or no longer."""
    try:
        place = path.read_text().strip()
        # its number may be another process's by now, and what that one has open is none of our business
        if not str(Path(place).readlink()).startswith(f"/memfd:{_MEMORY}"):
            return None
        for _ in range(_MOST_READS):
            what, began, check = _LAYOUT.unpack(Path(place).read_bytes())
            if what ^ began ^ _CHECK == check:
                return Phase(
                    name=_NAMES[what & 0xFF],
                    detail=_DETAILS[what >> 8 & 0xFF],
                    step=what >> _STEP_AT or None,
                    began_s=began / 1e9,
                    pid=int(place.split("/")[2]),
                )
    except (OSError, ValueError, IndexError, struct.error):
        pass
    return None


def _write(memory: mmap.mmap, what: int) -> None:
    began = time.monotonic_ns()  # one clock for all processes of a machine
    _LAYOUT.pack_into(memory, 0, what, began, what ^ began ^ _CHECK)


# a child shares the memory, but what it does is not what the rank does
os.register_at_fork(after_in_child=close)
