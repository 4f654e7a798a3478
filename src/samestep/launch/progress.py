"""Progress: how far a watched rank has come, from the observations that it is writing.

Reads what was added to the file, never the whole of it again, and knows of rows only the first, the last, and
how many steps lie between.
"""

import re
from pathlib import Path

from samestep.observations import decode, observations_path
from samestep.observed import End, Start
from samestep.record import rank_folder

_STEP = re.compile(rb'\{"row":"Step","step":(\d+)[,}]')
_BLOCK = re.compile(rb'\{"row":"Timing","first_step":(\d+),"num_steps":(\d+)[,}]')
_MOST_BYTES = 1 << 20
_LOGS = ("stdout.log", "stderr.log")


class Progress:
    """Follows the observations of one rank; `look` brings everything up to date.

    `num_steps` are those that the rank has taken, `first_step_at` when the first was seen.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.num_steps = 0
        self.first_step_at: float | None = None
        self.start: Start | None = None
        self.end: End | None = None
        self._path = observations_path(folder, rank)
        self._logs = [rank_folder(folder, rank) / name for name in _LOGS]
        self._offset = 0
        self._rest = b""

    @property
    def num_bytes(self) -> int:
        """The size of all that the rank has written: observations and its own output."""
        return sum(_size(path) for path in (self._path, *self._logs))

    @property
    def has_finished(self) -> bool:
        """Whether the program came to its own good end, whatever became of the process afterwards."""
        return self.end is not None and self.end.exit_code == 0

    def look(self, now: float, *, to_the_end: bool = False) -> None:
        """Read on; a bounded piece, or `to_the_end`."""
        while (new := self._read()) and (self._take(new, now) or to_the_end):
            pass

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read(_MOST_BYTES)
        except OSError:
            return b""
        self._offset += len(new)
        return new

    def _take(self, new: bytes, now: float) -> bool:
        """Take in some bytes; whether a row was too long for them, so that more are needed."""
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            if match := _STEP.match(line):
                self._reach(int(match[1]), now)
            elif match := _BLOCK.match(line):
                self._reach(int(match[1]) + int(match[2]) - 1, now)
            elif line.startswith((b'{"row":"Start"', b'{"row":"End"')):
                row = decode(line)
                self.start = row if isinstance(row, Start) else self.start
                self.end = row if isinstance(row, End) else self.end
        return not lines

    def _reach(self, step: int, now: float) -> None:
        self.num_steps = max(self.num_steps, step)
        self.first_step_at = now if self.first_step_at is None else self.first_step_at


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
