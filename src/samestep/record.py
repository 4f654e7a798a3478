"""Record: what a run writes down about itself, and how it is read again, without torch.

    RUN/
      record.json      what ran: format, versions, command, world, device names, threads, seed, totals
      progress.json    where the run is now; replaced at most twice a second
      steps.jsonl      one line a kept step (see `is_kept`), by the first rank
      epochs.jsonl     one line an epoch: {"epoch", "step", "values": {"train/loss": …}}
      findings.jsonl   what was noticed; other ranks write theirs to ranks/NNNNN/findings.jsonl
      events.jsonl     started, resumed, checkpoint saved, stopped …
      result.json      written once, at the end: status finished | stopped | failed, digest, steps …
      ranks/NNNNN/     pid, stdout.log, stderr.log, done, error.json, traceback.txt of each rank

Lines are only ever appended, also by a run that resumes. A line that was cut off by a crash is passed over
and remarked upon. JSON has no NaN or infinity: they are written as the strings "NaN", "Infinity" and
"-Infinity". Steps and the values of epochs are numbers, so there the reader turns the three back; elsewhere
they stay strings. This module knows files and nothing of training or of processes.
"""

import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from samestep import __version__
from samestep.errors import RecordError

FORMAT = "samestep-record"
VERSION = 1
FLUSH_EVERY_S = 0.1
PROGRESS_EVERY_S = 0.5

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def is_kept(step: int) -> bool:
    """Whether a step is written down: the first 1,000, every 10th to 10,000, every 100th to 100,000, …

    A record so grows by at most 900 lines for each factor of ten in steps.
    """
    return step <= 1000 or step % 10 ** (len(str(step - 1)) - 3) == 0


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank keeps its own files."""
    return folder / "ranks" / f"{rank:05d}"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file as a whole: a reader sees the old or the new one, never half of it."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(_dumps(value) + "\n", encoding="utf-8")
    half.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


class RecordWriter:
    """Writes the record of a run; every rank has one, and calls it without asking which rank it is.

    Only the first rank writes; findings are the exception, since what one rank noticed must not be lost.
    Lines reach the file at most `FLUSH_EVERY_S` late while steps go on, and at once for all but steps.
    """

    def __init__(self, folder: str | Path, rank: int) -> None:
        self.folder = Path(folder)
        self.rank = rank
        self._files: dict[str, TextIO] = {}
        self._lines: list[str] = []
        self._flushed = self._shown = -math.inf

    def describe(self, **about: Any) -> None:
        """Add to what record.json says of the run; `started_at` is set once, by the first call of all."""
        if self.rank != 0:
            return
        known = read_json(self.folder / "record.json") or {
            "format": FORMAT,
            "version": VERSION,
            "started_at": time.time(),
        }
        here = {
            "samestep": __version__,
            "torch": _version_of("torch"),
            "python": platform.python_version(),
            "host": platform.node(),
        }
        write_json(self.folder / "record.json", known | here | about)

    def step(self, step: int, **values: Any) -> None:
        """Write down a step, if it is one that is kept; steps count from 1, over all epochs.

        Of the values, readers know `epoch`, `loss`, `lr`, `grad_norm`, `step_s` and `examples`, which
        counts the examples trained on so far, over all ranks and steps.
        """
        if self.rank != 0:
            return
        now = time.monotonic()
        if is_kept(step):
            self._lines.append(_dumps({"step": step, **values}))
            if now - self._flushed >= FLUSH_EVERY_S:
                self.flush()
        if now - self._shown >= PROGRESS_EVERY_S:
            self._shown = now
            write_json(self.folder / "progress.json", {"step": step, **values})

    def epoch(self, epoch: int, *, step: int, values: Mapping[str, Any], **more: Any) -> None:
        """Write down the values at the end of an epoch, such as "valid/accuracy"."""
        self._append("epochs", {"epoch": epoch, "step": step, "values": dict(values), **more})

    def finding(self, finding: Any) -> None:
        """Write down a finding: a dataclass or a mapping with cause, message, evidence and fix."""
        row = dataclasses.asdict(finding) if dataclasses.is_dataclass(finding) else dict(finding)  # type: ignore[arg-type]
        self._append("findings", row, by_all=True)

    def event(self, event: str, **more: Any) -> None:
        """Write down that something happened, with the time of day in seconds since 1970."""
        self._append("events", {"event": event, "time": time.time(), **more})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, which ends the record."""
        if self.rank == 0:
            self.flush()
            write_json(self.folder / "result.json", result)

    def flush(self) -> None:
        """Hand all lines to the system; they then survive the death of this process."""
        if self._lines:
            file = self._open("steps")
            file.write("\n".join(self._lines) + "\n")
            file.flush()
            self._lines.clear()
        self._flushed = time.monotonic()

    def close(self) -> None:
        self.flush()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _append(self, name: str, row: dict[str, Any], *, by_all: bool = False) -> None:
        if self.rank == 0 or by_all:
            self.flush()
            file = self._open(name)
            file.write(_dumps(row) + "\n")
            file.flush()

    def _open(self, name: str) -> TextIO:
        if name not in self._files:
            folder = self.folder if self.rank == 0 else rank_folder(self.folder, self.rank)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.jsonl"
            was_cut = _ends_in_half_a_line(path)
            self._files[name] = path.open("a", encoding="utf-8")
            if was_cut:
                self._files[name].write("\n")
        return self._files[name]


class Record:
    """The record of a run, as far as it goes; `about` is record.json and `result` is result.json, if any.

    `remarks` says what could not be read; it fills while the iterators run.
    """

    def __init__(self, folder: Path, about: dict[str, Any], result: dict[str, Any] | None) -> None:
        self.folder = folder
        self.about = about
        self.result = result
        self.remarks: list[str] = []

    @classmethod
    def read(cls, folder: str | Path) -> "Record":
        """Open the record in `folder`; the run may have ended, have crashed or be going on."""
        folder = Path(folder)
        about = read_json(folder / "record.json")
        if about is None or about.get("format") != FORMAT:
            raise RecordError(
                f"{folder} was to be read as the record of a run, but it holds no record.json of Samestep's; "
                "name the folder that `samestep train --out` was given."
            )
        if about.get("version") != VERSION:
            raise RecordError(
                f"The record in {folder} has version {about.get('version')}, and Samestep {__version__} "
                f"reads version {VERSION}; read it with the Samestep that wrote it ({about.get('samestep')})."
            )
        return cls(folder, about, read_json(folder / "result.json"))

    def steps(self) -> Iterator[dict[str, Any]]:
        """The kept steps in order; of a step taken again after resuming, the later one."""
        path = self.folder / "steps.jsonl"
        # A resumed run starts again below the last step: what it repeats makes the earlier lines void.
        steps = [row["step"] for row in self._rows(path, remark=False)]
        void_from = math.inf
        valid = [False] * len(steps)
        for index in range(len(steps) - 1, -1, -1):
            valid[index] = steps[index] < void_from
            void_from = min(void_from, steps[index])
        for row, is_valid in zip(self._rows(path), valid, strict=False):
            if is_valid:
                yield {name: _number(value) for name, value in row.items()}

    def epochs(self) -> Iterator[dict[str, Any]]:
        """The epochs in the order in which they ended."""
        for row in self._rows(self.folder / "epochs.jsonl"):
            values = {name: _number(value) for name, value in row.get("values", {}).items()}
            yield row | {"values": values}

    def events(self) -> Iterator[dict[str, Any]]:
        """What happened, in order of time."""
        yield from self._rows(self.folder / "events.jsonl")

    def findings(self) -> list[dict[str, Any]]:
        """What any rank noticed, each finding once."""
        return list(self._findings())

    def _findings(self) -> Iterable[dict[str, Any]]:
        seen = set()
        for path in [
            self.folder / "findings.jsonl",
            *sorted(self.folder.glob("ranks/*/findings.jsonl")),
        ]:
            for row in self._rows(path):
                key = (row.get("cause"), row.get("message"))
                if key not in seen:
                    seen.add(key)
                    yield row

    def _rows(self, path: Path, *, remark: bool = True) -> Iterator[dict[str, Any]]:
        if not path.exists():
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    row = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    row = None
                if isinstance(row, dict):
                    yield row
                elif remark:
                    note = f"{path.name}, line {number}: cut off while it was written, and passed over"
                    if note not in self.remarks:
                        self.remarks.append(note)


def _dumps(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, default=_plain)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """Numbers of other libraries as Python's; anything else as its text."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", 1) == 0:
        return _finite(item())
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)


def _number(value: Any) -> Any:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _ends_in_half_a_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False
