"""Watched: a program on N ranks of this machine, each below the probe, until it ends or has shown enough.

Sets the variables that torchrun sets, keeps what ranks say in their own files, and leaves no process behind.
It does not judge what was observed, only how the run ended.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samestep.experiment import Experiment
from samestep.launch.ending import failure_of, is_port_taken, stall_of
from samestep.launch.failure import Failure
from samestep.launch.family import cpu_s
from samestep.launch.job import Job
from samestep.launch.machine import check_ranks, count_gpus, free_port
from samestep.launch.progress import Progress
from samestep.launch.quiet import Quiet
from samestep.launch.starting import Kept, Process, Start, variables
from samestep.launch.tail import Listener
from samestep.launch.voices import Said
from samestep.observations import STEPS_IN_FULL
from samestep.record import rank_folder

TICK_S = 0.02
LOOK_S = 0.5
"""Between two looks at processor times."""
GRACE_S = 5.0
"""From the failure of one rank until the others are killed: time to say what became of them."""
LINGER_S = 5.0
"""From the end of a rank's program until its process is no longer waited for: torch may hang there."""
ENOUGH_S = 20.0
STALL_S = 60.0
_MOST_PORTS = 3

Status = Literal["finished", "cut", "failed", "stalled"]
OnTick = Callable[[Sequence[Progress], list[Said]], None]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended: by itself, `cut` by us once it had shown enough, or not as it should.

    `exit_codes` has those of ranks that ended by themselves; below 0 is a signal.
    """

    status: Status
    exit_codes: Mapping[int, int]
    seconds: float
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Runs a job, a script or the training of a task, on any number of ranks below the probe.

    A run is cut once every rank has taken `steps` steps and `enough_s` seconds have passed since its first;
    with `steps` None it never is. It stalls when no rank has written or worked for `stall_s`. `options` are
    further ones of the probe.
    """

    job: Job
    threads: int
    steps: int | None = STEPS_IN_FULL
    enough_s: float = ENOUGH_S
    stall_s: float | None = STALL_S
    options: tuple[str, ...] = ()
    start: Start = Kept

    def run(
        self,
        folder: Path,
        world_size: int,
        experiment: Experiment | None = None,
        *,
        on_tick: OnTick = lambda ranks, said: None,
    ) -> Ended:
        """Run it once, into `folder`, which is new; returns or raises when no process of it is left.

        `on_tick` is called many times a second with how far ranks have come and what they said since.
        """
        check_ranks(world_size, count_gpus())
        for _ in range(_MOST_PORTS):
            ended, is_meeting_lost = self._once(folder, world_size, experiment, on_tick)
            if not is_meeting_lost:
                break
            shutil.rmtree(folder / "ranks")
        return ended

    def _once(
        self, folder: Path, size: int, experiment: Experiment | None, on_tick: OnTick
    ) -> tuple[Ended, bool]:
        began = time.monotonic()
        arguments = self._arguments(folder, experiment)
        port = free_port()
        listener = Listener(folder, size)
        run = _Run(self, folder, size)
        try:
            for rank in range(size):
                own = rank_folder(folder, rank)
                own.mkdir(parents=True)
                env = variables(
                    rank, size, run=folder.name, port=port, env=os.environ, threads=self.threads, job=self.job
                )
                run.processes.append(self.start(arguments, env, own))
            while run.status is None:
                time.sleep(TICK_S)
                run.look(time.monotonic())
                on_tick(run.ranks, listener.hear())
        finally:
            run.kill()
        on_tick(run.ranks, listener.close())
        return run.ended(time.monotonic() - began), run.status == "failed" and is_port_taken(
            folder, run.ranks
        )

    def _arguments(self, folder: Path, experiment: Experiment | None) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        found = [str(folder), *self.options]
        if self.steps is not None:
            found += ["--steps", str(self.steps)]
        if experiment is not None and experiment.is_any:
            experiment.write(folder / "experiment.json")
            found += ["--experiment", str(folder / "experiment.json")]
        if self.job.command == "script":
            return [*found, *self.job.script]
        self.job.write(folder)
        return [*found, "-m", "samestep.rank", str(folder)]


class _Run:
    """One run under way; `status` is None until it is decided."""

    def __init__(self, watched: Watched, folder: Path, size: int) -> None:
        self.processes: list[Process] = []
        self.ranks = [Progress(folder, rank) for rank in range(size)]
        self.status: Status | None = None
        self._watched = watched
        self._folder = folder
        self._quiet = None if watched.stall_s is None else Quiet(watched.stall_s, size)
        self._exit_codes: dict[int, int] = {}
        self._over_since: dict[int, float] = {}
        self._failed_at: float | None = None
        self._looked_at = 0.0
        self._running: list[int] = []

    def look(self, now: float) -> None:
        """See who has ended and how far the others are, and decide."""
        for rank, process in zip(self.ranks, self.processes, strict=True):
            if rank.rank in self._exit_codes:
                continue
            code = process.poll()
            rank.look(now, to_the_end=code is not None)
            if code is None and rank.end is not None:
                since = self._over_since.setdefault(rank.rank, now)
                code = rank.end.exit_code if now - since > LINGER_S else None
            elif code == -signal.SIGABRT and rank.end is not None and rank.end.exit_code:
                code = rank.end.exit_code  # it was over: torch's threads abort some processes as they leave
            if code is not None:
                self._exit_codes[rank.rank] = code
                if code != 0 and not rank.has_finished:
                    self._failed_at = self._failed_at or now
        self._running = [rank.rank for rank in self.ranks if rank.rank not in self._exit_codes]
        if not self._running:
            self.status = "finished" if self._failed_at is None else "failed"
        elif self._failed_at is not None:
            self.status = "failed" if now - self._failed_at > GRACE_S else None
        elif self._is_enough(now):
            self.status = "cut"
        elif self._is_quiet(now):
            self.status = "stalled"

    def _is_enough(self, now: float) -> bool:
        steps, enough_s = self._watched.steps, self._watched.enough_s
        return steps is not None and all(
            rank.num_steps >= steps
            and rank.first_step_at is not None
            and now - rank.first_step_at >= enough_s
            for rank in self.ranks
            if rank.rank in self._running
        )

    def _is_quiet(self, now: float) -> bool:
        if self._quiet is None or now - self._looked_at < min(LOOK_S, self._quiet.after_s / 4):
            return False
        self._looked_at = now
        written = (len(self._running), *(rank.num_bytes for rank in self.ranks))
        times = [cpu_s(self.processes[rank].pid) for rank in self._running]
        known = [time for time in times if time is not None]
        return self._quiet.look(now, written, sum(known) if known else None)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        for rank in self.ranks:
            rank.look(time.monotonic(), to_the_end=True)

    def ended(self, seconds: float) -> Ended:
        assert self.status is not None, "a run has ended once it is decided how"
        failure = None
        if self.status == "failed":
            failure = failure_of(self._folder, self.ranks, self._exit_codes)
        elif self.status == "stalled":
            assert self._watched.stall_s is not None, "only then ranks are said to stall"
            failure = stall_of(self.ranks, self._running, self._watched.stall_s)
        return Ended(status=self.status, exit_codes=self._exit_codes, seconds=seconds, failure=failure)
