"""Losses: the news of ranks that died while the run went on without them, for the user and for the record."""

import re
from pathlib import Path

from samestep.launch.failure import RankError, death_of
from samestep.launch.roll import Ended, Roll
from samestep.record import RecordWriter, rank_folder, read_json

_CHECKPOINT = re.compile(r"step-(\d+)(-\d+)?")


class Losses:
    """Reads the roll of a run, and writes what was lost to its events."""

    def __init__(self, roll: Roll, folder: Path) -> None:
        self._roll = roll
        self._folder = folder
        self._num_read = 0
        self._round = 1
        self._reasons: list[str] = []

    def look(self) -> str | None:
        """One sentence when ranks have begun again since the last look, or None."""
        ended = self._roll.ended
        for entry in ended[self._num_read :]:
            if entry.is_cause and entry.verdict in ("lost", "again"):
                self._lose(entry)
        self._num_read = len(ended)
        if self._roll.round <= self._round:
            return None
        self._round = self._roll.round
        reasons, self._reasons = self._reasons, []
        size = self._roll.started[0].size
        why = " and ".join(reasons) or "the ranks lost one another"
        return f"{why}; going on with {size} rank{'s' * (size > 1)} from {self._place()}"

    def _lose(self, entry: Ended) -> None:
        fields = read_json(rank_folder(self._folder, entry.rank) / "error.json")
        reason = death_of(entry.code)
        if fields is not None and entry.code > 0:
            reason = f"lost its device ({RankError.of(entry.rank, fields).message.splitlines()[0]})"
        self._reasons.append(f"rank {entry.rank} {reason}")
        record = RecordWriter(self._folder, 0)
        record.event("rank-lost", rank=entry.rank, reason=reason)
        record.close()

    def _place(self) -> str:
        """Where a training goes on: its newest checkpoint."""
        found = [_CHECKPOINT.fullmatch(path.name) for path in self._folder.glob("checkpoints/step-*")]
        steps = [int(match[1]) for match in found if match]
        return f"step {max(steps)}" if steps else "the beginning"
