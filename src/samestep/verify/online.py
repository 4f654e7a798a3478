"""Online: judges a run while it goes on, from what the probes of its ranks write down in the cheap mode.

Only the process that looks compares ranks: no rank talks to another, so watching cannot make a program hang.
`OnlineJudge` is the judgement alone, rows in and findings out; `Online` reads the growing files. Memory is
bounded: of each rank a piece of its file is read at a time, that of the rank which is furthest behind first,
and steps that wait for a rank are forgotten when they become too many.
"""

import os
import platform
import time
from pathlib import Path

from samestep import phase
from samestep.findings import Finding
from samestep.observations import observations_path
from samestep.observed import End, Row, Start, Step
from samestep.phase import Phase
from samestep.record import rank_folder
from samestep.verify.online_examples import ExamplesWatch
from samestep.verify.online_pace import STAND_S, PaceWatch
from samestep.verify.online_replicas import ReplicasWatch
from samestep.verify.tailing import Tailing

EVERY = 50
"""Steps between two looks, unless another number is asked for."""
MOST_S = 0.5
"""How long one `look` reads before it lets others go on."""
_LEAST_FAR = 20


class OnlineJudge:
    """What the rows of `world_size` ranks show; each thing is told once, when it first shows.

    Rows of one rank come in order. Ranks may be ahead of one another by any number of rows, but what the
    slowest has to be compared with may be forgotten by then.
    """

    def __init__(self, world_size: int, *, every: int = EVERY, stand_s: float = STAND_S) -> None:
        self._pace = PaceWatch(world_size, far=max(2 * every, _LEAST_FAR), stand_s=stand_s)
        self._watches = (ReplicasWatch(world_size), ExamplesWatch(world_size), self._pace)

    def take(self, rank: int, row: Row) -> list[Finding]:
        """What is known only now that this row was read."""
        return [finding for watch in self._watches for finding in watch.take(rank, row)]

    def stand(self, phases: dict[int, Phase], now: float) -> list[Finding]:
        """What the places show where ranks are now; `now` is on the clock of `time.monotonic`."""
        return self._pace.stand(phases, now)


class Online:
    """Follows the ranks that write to `folder`; call `look` about once a second.

    Ranks that are started again, after one was lost, are judged as a run of their own.
    """

    def __init__(self, folder: Path, *, every: int = EVERY, stand_s: float = STAND_S) -> None:
        self.folder = folder
        self.findings: list[Finding] = []
        self._every = every
        self._stand_s = stand_s
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._tails: dict[int, Tailing] = {}
        self._places: dict[int, int] = {}
        self._judge: OnlineJudge | None = None
        self._starts: dict[int, Start] = {}
        self._ended: set[int] = set()
        self.world_size: int | None = None

    @property
    def num_steps(self) -> int:
        """The steps that a rank was seen to have taken."""
        return max(self._places.values(), default=0)

    @property
    def is_over(self) -> bool:
        """Whether every rank has told its end."""
        return self.world_size is not None and len(self._ended) >= self.world_size

    @property
    def is_abandoned(self) -> bool:
        """Whether all ranks are gone, some without a word; of ranks on other machines that is not known."""
        if self.world_size is None or len(self._starts) < self.world_size:
            return False
        left = [start for rank, start in self._starts.items() if rank not in self._ended]
        return all(start.host == platform.node() and not _is_alive(start.pid) for start in left)

    def look(self, *, to_the_end: bool = False) -> list[Finding]:
        """What has shown since the last call; `to_the_end` reads all that there is, however long it takes."""
        self._find_ranks()
        found = self._read(time.monotonic() + (float("inf") if to_the_end else MOST_S))
        if self._judge is not None:
            paths = {rank: rank_folder(self.folder, rank) / "phase" for rank in self._tails}
            phases = {rank: told for rank, path in paths.items() if (told := phase.read(path)) is not None}
            found += self._judge.stand(phases, time.monotonic())
        self.findings += found
        return found

    def _find_ranks(self) -> None:
        newest = self._attempt
        for path in self.folder.glob("ranks/*/observations-*.jsonl"):
            number = path.stem.partition("-")[2]
            newest = max(newest, int(number)) if number.isdecimal() else newest
        if newest > self._attempt:
            self._begin(newest)
        ranks = range(self.world_size) if self.world_size is not None else self._seen()
        for rank in ranks:
            if rank not in self._tails:
                self._tails[rank] = Tailing(observations_path(self.folder, rank, self._attempt))

    def _seen(self) -> list[int]:
        names = [path.name for path in self.folder.glob("ranks/*")]
        return [int(name) for name in names if name.isdecimal()]

    def _read(self, deadline: float) -> list[Finding]:
        found: list[Finding] = []
        idle: set[int] = set()
        while len(idle) < len(self._tails) and time.monotonic() < deadline:
            rank = min(self._tails.keys() - idle, key=lambda r: (self._places.get(r, 0), r))
            rows = self._tails[rank].read()
            if rows is None:
                idle.add(rank)
                continue
            for row in rows:
                found += self._take(rank, row)
        return found

    def _take(self, rank: int, row: Row) -> list[Finding]:
        if isinstance(row, Start):
            self._starts[rank] = row
            self.world_size = row.world_size or 1
            if self._judge is None:
                self._judge = OnlineJudge(self.world_size, every=self._every, stand_s=self._stand_s)
        elif isinstance(row, Step):
            self._places[rank] = row.step
        elif isinstance(row, End):
            self._ended.add(rank)
            self._places[rank] = max(self._places.get(rank, 0), row.num_steps)
        return self._judge.take(rank, row) if self._judge is not None else []


def forget_observations(folder: Path) -> None:
    """Remove what ranks of an earlier run in the same folder observed, so that it is not taken for news."""
    for path in folder.glob("ranks/*/observations*.jsonl"):
        path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
