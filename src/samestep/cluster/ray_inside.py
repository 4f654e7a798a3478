"""Ray as a job sees it from inside: what each of Ray Train's workers runs, and what is said when one is lost.

A worker holds the resources of its rank and keeps a process below it, which is started as srun would start
it and dies with the worker: so a script finds in Ray what it finds elsewhere, and Ray's own threads are not
in its process. The first worker accounts for all. Knows Ray, and is only loaded by processes that Ray started
or that drive it.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ray.train
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig

from samestep.cluster.attempt import TICK_S, Attempt
from samestep.cluster.ray import stop_path, waited_s
from samestep.launch.roll import Roll
from samestep.launcher import Seat

LOST = 137
"""The exit code that a shell gives a process that was killed."""


class RankLost(Exception):
    """A rank is gone that Ray is to start again, with all others."""


class Meeting(TorchConfig):  # type: ignore[misc]  # Ray is not looked at by the type checker
    """Torch's group of Ray's own workers: the ranks below meet at its store, and its GPUs are theirs."""

    def __init__(self) -> None:
        super().__init__(backend="gloo")

    @property
    def train_func_context(self) -> type[AbstractContextManager[None]]:
        return contextlib.nullcontext  # Ray's would take memory of the GPU for the worker itself


class Losses(ray.train.UserCallback):  # type: ignore[misc]
    """Writes down that workers were lost, which they could not do themselves."""

    def __init__(self, folder: str, item: int) -> None:
        self._place = folder, item

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        folder, item = self._place
        ranks = ", ".join(map(str, sorted(worker_exceptions)))
        reason = f"Ray lost the worker of rank {ranks} and starts all again"
        Attempt(Path(folder), item, os.environ).end(LOST, requeued=True, reason=reason)


def work(config: Mapping[str, Any]) -> None:
    """One attempt at an item, in one of the workers; raises RankLost where another may go on."""
    context = ray.train.get_context()
    attempt = Attempt(Path(config["folder"]), config["item"], os.environ)
    is_first = context.get_world_rank() == 0
    if is_first:
        attempt.begin(waited_s(attempt.folder, attempt.number))
    # one word for all: a moment later the run has begun, and others would mean to resume it
    command = broadcast_from_rank_zero(attempt.command())
    code = _run(command, attempt, size=context.get_world_size(), is_first=is_first)
    lost = _lost(attempt) if is_first else []
    is_lost = code < 0 or bool(lost)
    if is_first:
        attempt.end(code if code >= 0 else 128 - code, requeued=is_lost and attempt.request.may_go_on)
    if is_lost and attempt.request.may_go_on:
        ranks = lost or [context.get_world_rank()]
        raise RankLost(f"rank {', '.join(map(str, ranks))} was killed")


def _run(command: list[str], attempt: Attempt, *, size: int, is_first: bool) -> int:
    """Run a command until it ends, here or because it was asked to; below 0 if it was killed."""
    tether = [sys.executable, "-P", "-m", "samestep.launch.tether", str(os.getpid())]
    with (attempt.folder / f"ray-{attempt.number}.out").open("ab") as out:
        child = subprocess.Popen(  # noqa: S603
            tether + command,
            cwd=attempt.request.workdir,
            env=_environment(attempt, size),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    stop = stop_path(attempt.folder, attempt.number)
    is_told = False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(TICK_S)
        if is_first and not is_told and stop.exists():
            is_told = True
            child.send_signal(signal.SIGTERM)


def _environment(attempt: Attempt, size: int) -> dict[str, str]:
    """What the command finds: its seat as Ray says it, with the store that Ray keeps; alone, no seat."""
    env = dict(attempt.env)
    if attempt.request.needs.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    if size > 1:
        return env | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    of_a_seat = Seat.alone(0).as_torchrun_says()
    return {name: value for name, value in env.items() if name not in of_a_seat}


def _lost(attempt: Attempt) -> list[int]:
    """The ranks of a run that were killed, and took the others along."""
    ended = [entry for entry in Roll(attempt.out).ended if entry.verdict == "failed"]
    return sorted({entry.rank for entry in ended if entry.is_cause and entry.code < 0})
