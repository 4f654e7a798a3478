"""Slurm as a job sees it from inside: how long it waited, how steps are started, how to be started again."""

import contextlib
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from samestep.cluster.request import Request
from samestep.cluster.slurm_queue import ASK_S, Row, queue
from samestep.errors import LaunchError

_TRIES, _PAUSE_S = 3, 5.0
"""How often the queue is asked whether the job is still wanted, if it does not answer."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job that this process is in; `wait_s` is how long it was in the queue this time."""

    id: str
    wait_s: float | None
    env: Mapping[str, str]


def job(env: Mapping[str, str]) -> Job:
    """The job that the variables name, with what the queue knows of it."""
    row = None
    with contextlib.suppress(LaunchError):
        row = _row(env)
    wait_s = None
    if row is not None and row.since is not None and row.start is not None:
        # by the queue's own clock: a busy node may take seconds until this process is there
        wait_s = max(0.0, row.start - row.since)
    return Job(id=env["SLURM_JOB_ID"], wait_s=wait_s, env=env)


def srun(request: Request) -> list[str]:
    """The words in front of a command that start it once on each node of the job."""
    needs = request.needs
    return [
        "srun",
        f"--nodes={needs.num_nodes}",
        f"--ntasks={needs.num_nodes}",
        "--ntasks-per-node=1",
        # since 22.05 a step no longer has what the job asked for
        f"--cpus-per-task={needs.cpus_per_node}",
        # the first node says what went wrong, and must live long enough for it
        "--kill-on-bad-exit=0",
    ]


def is_still_wanted(env: Mapping[str, str]) -> bool:
    """Whether the job is to go on, as far as the queue knows.

    It still runs, then, though it may have been told of a limit or a preemption. Once it was cancelled, or a
    limit is passed, it is leaving; where Slurm itself then means to start it again, it needs no word from us.
    """
    for _ in range(_TRIES):
        try:
            row = _row(env)
        except LaunchError:  # a busy controller must not cost the rest of the training
            time.sleep(_PAUSE_S)
        else:
            return row is not None and row.state == "running" and not row.is_leaving
    return False


def requeue(job: Job) -> None:
    """Have the job started again; the controller then ends this process."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scontrol", "requeue", job.id], env=dict(job.env), timeout=ASK_S, check=False)  # noqa: S603, S607


def _row(env: Mapping[str, str]) -> Row | None:
    number = env["SLURM_JOB_ID"]
    return next((row for row in queue([number], env) if row.raw_id == number), None)
