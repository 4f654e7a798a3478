"""Stack: where a process is in its Python code, asked from outside, also while it is stuck in a C call.

The process offers it beforehand: a handler of the interpreter's own, in C, writes the stack to a file when a
signal comes. Nobody is asked who did not offer, since the signal would end it.
"""

import contextlib
import faulthandler
import linecache
import os
import re
import signal
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# programs use SIGUSR1 and SIGUSR2 for themselves (Slurm scripts, submitit); this one is nobody's
SIGNAL = signal.SIGRTMIN + 7
_THREAD = re.compile(r"^(Current thread|Thread) 0x.*\n((?:  .*\n)*)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib"))
_SAMESTEP = str(Path(__file__).parent.parent) + os.sep


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One line of a stack."""

    path: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Whether it is neither Samestep's nor that of Python or an installed package."""
        return not self.path.startswith((*_LIBRARIES, _SAMESTEP, "<"))

    def __str__(self) -> str:
        path = self.path
        for start in _LIBRARIES:
            path = path.removeprefix(start)
        if path.startswith(_SAMESTEP):
            path = f"samestep/{path.removeprefix(_SAMESTEP)}"
        text = linecache.getline(self.path, self.line).strip() if self.is_users else ""
        return f"{path}:{self.line} in {self.function}" + (f": {text}" if text else "")


def offer(path: Path) -> None:
    """Let this process, and those forked from it, write their stacks to `path` whenever they are asked."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    faulthandler.register(SIGNAL, file=file, all_threads=True)


class Question:
    """The question where process `pid` is, asked once; `answer` is there a moment later, or never."""

    def __init__(self, pid: int, path: Path) -> None:
        self.pid = pid
        self._path = path
        self._offset = _size(path)
        self._last = ""
        if offers(pid):
            with contextlib.suppress(OSError):
                os.kill(pid, SIGNAL)

    def answer(self, *, is_late: bool = False) -> list[Frame] | None:
        """The frames of its main thread, innermost last; None while they may still be growing.

        `is_late` takes what is there, if only an empty list: a process deep in the kernel never answers.
        """
        text = ""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read().decode("utf-8", "replace")
        is_whole, self._last = bool(text) and text == self._last, text
        return frames_of(text) if is_whole or is_late else None


def frames_of(text: str) -> list[Frame]:
    """The main thread's frames in what the interpreter wrote, innermost last."""
    threads = [(match[1], match[2]) for match in _THREAD.finditer(text)]
    # a signal to a process comes to its main thread, which then is the current one
    main = next(
        (body for head, body in threads if head == "Current thread"), threads[-1][1] if threads else ""
    )
    return [
        Frame(path=path, line=int(line), function=function) for path, line, function in _FRAME.findall(main)
    ][::-1]


def offers(pid: int) -> bool:
    """Whether a process has a handler for the signal that asks for its stack."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (SIGNAL - 1) & 1)


def forks_of(pid: int) -> list[int]:
    """The children of a process that were forked from it and run its code, as a loader's workers do."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [child for child in children if offers(child)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
