"""Member: torch's elastic agent for one rank.

When a rank dies its member leaves; the agents of the others stop their ranks, meet again, now one fewer, and
start new ones. What is decided here: whether the end of a rank is the loss of a rank, the consequence of one,
or the end of the run.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError  # noqa: TID251
from torch.distributed.elastic.agent.server.api import (  # noqa: TID251
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent  # noqa: TID251
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std  # noqa: TID251
from torch.distributed.elastic.rendezvous import RendezvousClosedError  # noqa: TID251

from samestep.launch.elastic import stopping
from samestep.launch.elastic.meeting import ROUND, Meeting, Store
from samestep.launch.failure import RankError
from samestep.launch.folder import clear_rank
from samestep.launch.job import Job
from samestep.launch.limits import Limits
from samestep.launch.machine import address_at
from samestep.launch.roll import Ended, Roll, Started, Verdict
from samestep.launcher import Seat
from samestep.record import rank_folder, read_json

MONITOR_S = 0.1
SETTLE_S = 1.0
"""How long a rank that lost another waits for the news of a loss."""
ERROR_SETTLE_S = 0.5
"""The same for an error that does not look like it; shorter, so that nobody has begun again meanwhile."""
LEAVE_S = 10.0
"""What a rank that failed has to leave by itself."""
LAST_SAVE_S = 1.0
"""What the first rank has to write its last checkpoint before it is killed to be started again."""

DONE, FAILED, LEFT = 0, 1, 3
"""How a member ends: its rank has done its work; the run is over; the run may go on without it."""


class _Over(Exception):
    """A member has no rank any more."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class Member(LocalElasticAgent):
    """Torch's elastic agent for one rank; its number is that of its device and never changes."""

    def __init__(
        self, folder: Path, number: int, store: Store, limits: Limits, *, seat: Seat, gpus: Sequence[str]
    ) -> None:
        self._folder = folder
        self._number = number
        self._members = store
        self._limits = limits
        self._seat = seat
        address = address_at(seat)
        self._meeting = Meeting(store, limits, number=number, address=address)
        self._roll = Roll(folder, seat.index)
        self._gpus = gpus
        self._rank = self._round = 0
        self._ended_at: float | None = None
        self._erred_at: float | None = None
        self._end: RunResult | None = None
        spec = WorkerSpec(
            role="rank",
            local_world_size=1,
            entrypoint=sys.executable,
            args=_arguments(folder),
            rdzv_handler=self._meeting,
            max_restarts=1 << 20,  # `_judge` decides
            monitor_interval=MONITOR_S,
            local_addr=address,
        )
        logs = folder / "agent" / f"member-{number}"
        logs.mkdir(parents=True, exist_ok=True)
        super().__init__(spec, DefaultLogsSpecs(str(logs), redirects=Std.ALL), exit_barrier_timeout=1.0)

    @property
    def _own(self) -> Path:
        return rank_folder(self._folder, self._rank)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        while True:
            try:
                super()._rendezvous(worker_group)
                self._make_known(worker_group)
                return
            except DistStoreError:
                continue  # one of those that met was lost before it had told all

    def _make_known(self, group: Any) -> None:
        """Tell the rank what all members of the round agreed on."""
        self._rank, store = int(group.group_rank), group.store
        members = self._meeting.members
        if self._rank == 0:
            store.set(ROUND, str(self._members.add(ROUND, 1)))
        self._round = int(store.get(ROUND))
        os.environ["SAMESTEP_RESTARTS"] = str(self._round - 1)
        per_seat = self._limits.most // self._seat.count
        own = [member for member in members if member // per_seat == self._seat.index]
        os.environ |= {
            "SAMESTEP_LOCAL_RANK": str(own.index(self._number)),
            "SAMESTEP_LOCAL_SIZE": str(len(own)),
            "SAMESTEP_SEAT": f"{self._seat.index}/{self._seat.count}",
        }
        if self._gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[member % per_seat] for member in own)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._end = self._ended_at = self._erred_at = None
        self._meeting.is_held = False
        group: Any = worker_group  # torch says that all of it may be None, which it is before a meeting
        size = group.group_world_size
        for rank in [self._rank, *(range(size, self._limits.most) if self._rank == 0 else ())]:
            clear_rank(self._folder, rank)
        ids: dict[int, Any] = super()._start_workers(worker_group)
        stopping.heed()  # torch has put its own in place
        self._roll.write(
            Started(
                round=self._round,
                member=self._number,
                rank=self._rank,
                size=size,
                pid=ids[0],
                seat=self._seat.index,
            )
        )
        return ids

    def _stop_workers(self, worker_group: WorkerGroup, *more: Any, **options: Any) -> None:
        if self._pcontext is not None and self._end is None and self._rank == 0:
            self._pcontext.wait(LAST_SAVE_S, period=0.05)
        self._shutdown(signal.SIGKILL)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._end is None:
            result: RunResult = super()._monitor_workers(worker_group)
            if result.state is WorkerState.HEALTHY:
                return self._look_around(result, worker_group)
            if result.state not in (WorkerState.SUCCEEDED, WorkerState.FAILED):
                return result
            self._end, self._ended_at = result, time.monotonic()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker_group.workers[0].id, signal.SIGKILL)  # loader workers of a killed rank
        return self._judge(worker_group)

    def _look_around(self, healthy: RunResult, group: WorkerGroup) -> RunResult:
        """What a rank that runs has to do: go on, or begin again because another is gone."""
        if not self._is_whole(group) and self._may_begin_again:
            return RunResult(state=WorkerState.UNHEALTHY)
        if self._error() is not None:
            self._meeting.is_held = True  # it is about to end, and will be judged by that
            self._erred_at = self._erred_at or time.monotonic()
            if time.monotonic() - self._erred_at > LEAVE_S:
                os.killpg(group.workers[0].id, signal.SIGKILL)
        return healthy

    def _judge(self, group: WorkerGroup) -> RunResult:
        """What the end of this member's rank means; HEALTHY while that is not clear yet."""
        assert self._end is not None and self._ended_at is not None
        failure = self._end.failures.get(self._rank)
        code = failure.exitcode if failure is not None else 0
        waited = time.monotonic() - self._ended_at
        healthy = RunResult(state=WorkerState.HEALTHY)
        if code == 0 or (self._own / "done").exists():  # torch with gloo may abort after the work
            if self._rank != 0 and not self._is_first_done():
                if not self._is_whole(group):
                    return self._again(code, is_cause=False)
                return healthy  # the result is not written yet: without the first rank it is to be done again
            self._note(code, "done")
            return RunResult(state=WorkerState.SUCCEEDED, return_values={self._rank: None})
        error = self._error()
        is_death = error.is_lost_device if error is not None else code < 0
        if is_death:
            return self._mourn(code, group, can_stay=error is None)
        is_lost_peer = error is not None and error.is_lost_peer
        if not self._is_whole(group):
            return self._again(code, is_cause=False)
        if waited < (SETTLE_S if is_lost_peer else ERROR_SETTLE_S) and self._round < self._limits.most_rounds:
            self._meeting.is_held = not is_lost_peer
            return healthy
        if is_lost_peer:
            return self._again(code, is_cause=False)
        self._note(code, "failed")
        raise _Over("failed")

    def _mourn(self, code: int, group: WorkerGroup, *, can_stay: bool) -> RunResult:
        """This member's own rank died: leave, if enough are left, or start it again, if that is allowed."""
        if self._may_begin_again:
            if self._meeting.num_left > self._limits.least:
                self._note(code, "lost")
                raise _Over("lost")
            if can_stay and self._limits.restarts is not None:
                return self._again(code, is_cause=True)
        self._note(code, "failed")
        raise _Over("failed")

    def _again(self, code: int, *, is_cause: bool) -> RunResult:
        """Have torch's agent meet the others again and start the rank anew, unless that is not to be."""
        if not self._may_begin_again:
            self._note(code, "failed", is_cause=is_cause)
            raise _Over("failed")
        self._note(code, "again", is_cause=is_cause)
        return RunResult(state=WorkerState.FAILED, failures=self._end.failures if self._end else {})

    def _note(self, code: int, verdict: Verdict, *, is_cause: bool = True) -> None:
        self._roll.write(
            Ended(
                round=self._round,
                member=self._number,
                rank=self._rank,
                code=code,
                verdict=verdict,
                is_cause=is_cause,
            )
        )

    def _error(self) -> RankError | None:
        fields = read_json(self._own / "error.json")
        return RankError.of(self._rank, fields) if fields is not None else None

    @property
    def _may_begin_again(self) -> bool:
        may = self._round < self._limits.most_rounds and not stopping.asked()
        return may and not self._is_first_done()

    def _is_first_done(self) -> bool:
        return (rank_folder(self._folder, 0) / "done").exists()

    def _is_whole(self, group: WorkerGroup) -> bool:
        """Whether the members of this round are those that are left."""
        return bool(group.group_world_size == self._meeting.num_left)

    def serve(self) -> int:
        """Run until the rank is done or has no successor; the exit code tells the host which."""
        try:
            self.run()
        except _Over as over:
            if over.verdict == "lost":
                return LEFT
            with contextlib.suppress(Exception):
                self._meeting.set_closed()  # ends those that wait to begin again
            return FAILED
        except RendezvousClosedError:
            return FAILED
        except DistNetworkError:
            if (self._own / "done").exists():
                return DONE  # the keeper of the store was as well, and did not wait
            raise
        return DONE


def _arguments(folder: Path) -> tuple[str, ...]:
    """What Python is told to run a rank, below the probe if the run is watched."""
    every = Job.read(folder).watch_every
    below = () if every is None else ("samestep.probe", str(folder), "--every", str(every), "-m")
    return ("-u", "-m", *below, "samestep.rank", str(folder))
