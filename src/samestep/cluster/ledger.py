"""Ledger: which jobs were handed over, and how each was last seen; DIR/jobs.jsonl, only ever appended to.

An engine forgets a job minutes or months after its end; the ledger does not. A job that was once seen over
is over.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samestep.cluster.jobs import Sight
from samestep.cluster.request import Request
from samestep.errors import RecordError

FILE = "jobs.jsonl"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One job as it was handed over: item number `item` of a request, as which its engine knows it."""

    id: str
    engine: str
    request: str
    item: int
    name: str
    submitted_at: float


class Ledger:
    """The jobs of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / FILE
        self._requests: dict[str, Request] = {}

    @classmethod
    def of(cls, folder: Path) -> "Ledger":
        """The ledger of a folder that has one."""
        ledger = cls(folder)
        if not ledger._path.is_file():
            raise RecordError(
                f"{folder} was to be asked for its jobs, but holds no {FILE}; "
                "name the folder that `samestep submit --out` was given."
            )
        return ledger

    @property
    def entries(self) -> list[Entry]:
        """All jobs in the order in which they were handed over; of one handed over again, the last."""
        found: dict[str, Entry] = {}
        for row in self._rows("submitted"):
            entry = Entry(**row)
            found.pop(entry.name, None)
            found[entry.name] = entry
        return list(found.values())

    def last_sight(self, entry: Entry) -> Sight | None:
        """How a job was last seen."""
        fields = None
        for row in self._rows("seen"):
            if row.pop("id") == entry.id:
                fields = row
        return Sight(**{name: value for name, value in fields.items() if name != "time"}) if fields else None

    def submitted(self, entry: Entry) -> None:
        self._write("submitted", asdict(entry))

    def seen(self, entry: Entry, sight: Sight) -> None:
        """Write down how a job is seen, if that is news."""
        last = self.last_sight(entry)
        if last is None or last.state != sight.state or (sight.is_over and last != sight):
            self._write("seen", {"id": entry.id, "time": time.time(), **asdict(sight)})

    def request_of(self, entry: Entry) -> Request:
        if entry.request not in self._requests:
            self._requests[entry.request] = Request.read(self.files_of(entry))
        return self._requests[entry.request]

    def files_of(self, entry: Entry) -> Path:
        """Where the files of a job's request are."""
        return self.folder / "jobs" / entry.request

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        append(self._path, {"event": event, **fields})

    def _rows(self, event: str) -> Iterator[dict[str, Any]]:
        for row in rows_of(self._path):
            if row.pop("event", None) == event:
                yield row


def append(path: Path, row: dict[str, Any]) -> None:
    """Add one line, by one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(row, ensure_ascii=False) + "\n").encode())
    finally:
        os.close(file)


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The lines that can be read."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # half a line, of a process that was killed
        if isinstance(row, dict):
            yield row
