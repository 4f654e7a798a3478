"""Roll: which process was which rank in which round, and how it ended; members write, the launcher reads.

One line an entry, only ever appended, each by one write: members of a machine share a file without a lock. A
round is one meeting of the members and the ranks that they started after it; the first is round 1.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["done", "lost", "again", "failed"]


@dataclass(frozen=True, kw_only=True)
class Started:
    """A rank began."""

    round: int
    member: int
    rank: int
    size: int
    pid: int
    seat: int = 0
    """Which of the launchers of a run started it: the process number means something where that one runs."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A rank ended, and what its member made of it.

    `code` is below 0 for a signal. `lost`: the member leaves and the others go on; `again`: a new round on
    the same members; `failed`: the run is over.
    """

    round: int
    member: int
    rank: int
    code: int
    verdict: Verdict
    is_cause: bool = True
    """Whether it ended by itself, rather than for want of another rank."""


Entry = Started | Ended


class Roll:
    """The roll of one attempt at a run, in its folder; each seat has a file for what it writes."""

    def __init__(self, folder: Path, seat: int = 0) -> None:
        self._folder = folder / "agent"
        self._path = self._folder / (f"roll-{seat}.jsonl" if seat else "roll.jsonl")
        self._seen: dict[Path, tuple[int, int]] = {}
        self._num_read: dict[Path, int] = {}
        self._entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        """Append an entry; it is there for all readers when this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"entry": type(entry).__name__, **asdict(entry)}) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    @property
    def entries(self) -> list[Entry]:
        """All entries so far, in the order in which they were seen; those of a seat as it wrote them."""
        now = dict(_files(self._folder))
        if any(path not in now or now[path][0] != file for path, (file, _) in self._seen.items()):
            self._seen, self._num_read, self._entries = {}, {}, []  # it was that of an earlier attempt
        for path, seen in now.items():
            if seen != self._seen.get(path):
                found = list(_entries(path))
                self._entries += found[self._num_read.get(path, 0) :]
                self._seen[path], self._num_read[path] = seen, len(found)
        return self._entries

    @property
    def started(self) -> list[Started]:
        """The ranks of the newest round, as far as they were started."""
        found = [entry for entry in self.entries if isinstance(entry, Started)]
        return [entry for entry in found if entry.round == max(e.round for e in found)]

    @property
    def ended(self) -> list[Ended]:
        """All that ended, of all rounds."""
        return [entry for entry in self.entries if isinstance(entry, Ended)]

    @property
    def round(self) -> int:
        """The newest round that is wholly started; 0 before the first is."""
        started = self.started
        if not started:
            return 0
        newest = started[0].round
        return newest if len(started) == started[0].size else newest - 1

    def last_of(self, member: int) -> Started | None:
        """The rank that a member started last."""
        own = [e for e in self.entries if isinstance(e, Started) and e.member == member]
        return own[-1] if own else None


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """The files of a roll, each with its number and its size."""
    for path in sorted(folder.glob("roll*.jsonl")):
        with contextlib.suppress(OSError):
            about = path.stat()
            yield path, (about.st_ino, about.st_size)


def _entries(path: Path) -> Iterator[Entry]:
    for line in path.read_bytes().splitlines():
        try:
            fields = json.loads(line)
            kind = {"Started": Started, "Ended": Ended}[fields.pop("entry")]
            yield kind(**fields)
        except (ValueError, TypeError, KeyError):
            continue  # half a line, of a member that was killed
