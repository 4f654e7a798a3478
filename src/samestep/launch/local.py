"""Ranks on this machine: started, heard, stopped and accounted for, until the last of them is gone."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from samestep.launch.agent import Agent, environment_of
from samestep.launch.failure import Failure, RankError, cause_of
from samestep.launch.folder import prepared
from samestep.launch.job import Job
from samestep.launch.machine import check_ranks, count_gpus, free_port, threads_per_rank
from samestep.launch.tail import Listener
from samestep.launch.voices import Said
from samestep.record import rank_folder, read_json, write_json

TICK_S = 0.05
STOP_GRACE_S = 3.5
"""From the request to stop until ranks are killed; with what follows, all are gone within 5 s."""
LEAVE_GRACE_S = 10.0
"""From the last rank's end, or the first one's failure, until those that stay on are killed."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended; `result` is result.json, `failure` says why where `status` is failed."""

    status: Literal["finished", "stopped", "failed"]
    result: dict[str, Any]
    out: Path
    failure: Failure | None = None
    was_interrupted: bool = False


def launch(
    job: Job,
    *,
    gpus: int,
    out: Path,
    port: int | None = None,
    threads: int | None = None,
    on_tick: Callable[[list[Said]], None] = lambda said: None,
) -> Outcome:
    """Run a job on `gpus` ranks of this machine and return when no process of it is left.

    `on_tick` is called about 20 times a second with what the ranks said since. SIGINT, SIGTERM and SIGHUP are
    taken over meanwhile: the first asks the ranks to stop, the second kills them.
    """
    check_ranks(gpus, count_gpus())
    port = free_port(port)
    threads = threads_per_rank(gpus, threads)
    began = time.monotonic()
    with prepared(out, resume=job.resume) as folder:
        job.write(folder)
        listener = Listener(folder, gpus)
        with _signals() as received:
            agent = Agent(
                folder=folder, ranks=gpus, port=port, env=environment_of(os.environ, threads=threads)
            )
            try:
                _watch(agent, received, lambda: on_tick(listener.hear()))
            finally:
                agent.kill()
            on_tick(listener.close())
            return _outcome(agent, job, was_interrupted=bool(received), seconds=time.monotonic() - began)


def _watch(agent: Agent, received: list[int], tick: Callable[[], None]) -> None:
    """Wait for the agent's end; make it end when asked to, or when ranks stay on for no good reason."""
    asked_at = leaving_at = None
    while agent.is_running:
        tick()
        now = time.monotonic()
        if received and asked_at is None:
            asked_at = now
            agent.ask_ranks_to_stop(received[0])
        if leaving_at is None and _is_leaving(agent):
            leaving_at = now
        if (
            len(received) > 1
            or (asked_at is not None and now - asked_at > STOP_GRACE_S)
            or (leaving_at is not None and now - leaving_at > LEAVE_GRACE_S)
        ):
            return
        time.sleep(TICK_S)


def _is_leaving(agent: Agent) -> bool:
    folders = [rank_folder(agent.folder, rank) for rank in range(agent.ranks)]
    return all((f / "done").exists() for f in folders) or any((f / "error.json").exists() for f in folders)


def _outcome(agent: Agent, job: Job, *, was_interrupted: bool, seconds: float) -> Outcome:
    folder = agent.folder
    ranks = range(agent.ranks)
    done = frozenset(rank for rank in ranks if (rank_folder(folder, rank) / "done").exists())
    result = read_json(folder / "result.json")
    if result is not None and len(done) == agent.ranks:
        return Outcome(
            status="stopped" if result.get("status") == "stopped" else "finished",
            result=result,
            out=folder,
            was_interrupted=was_interrupted,
        )
    failure = None
    if not was_interrupted:
        failure = _failure(agent, done)
    ending: Mapping[str, Any] = {
        "status": "stopped" if was_interrupted else "failed",
        "command": job.command,
        "mode": job.mode,
        "world_size": agent.ranks,
        "seconds": seconds,
        "reason": failure.sentence if failure else "killed when it was asked to stop",
    }
    progress = read_json(folder / "progress.json") or {}
    result = {"digest": None, "steps": progress.get("step", 0), "examples": None, **(result or {}), **ending}
    write_json(folder / "result.json", result)
    return Outcome(
        status="stopped" if was_interrupted else "failed",
        result=result,
        out=folder,
        failure=failure,
        was_interrupted=was_interrupted,
    )


def _failure(agent: Agent, done: frozenset[int]) -> Failure:
    errors = []
    for rank in range(agent.ranks):
        fields = read_json(rank_folder(agent.folder, rank) / "error.json")
        if fields is not None:
            errors.append(RankError.of(rank, fields))
    codes, first = agent.exit_codes()
    cause = cause_of(size=agent.ranks, errors=errors, exit_codes=codes, first_failed=first, done=done)
    return cause or Failure(
        rank=None,
        sentence=f"The {agent.ranks} ranks could not be started; torch's agent said: {agent.last_words()}",
    )


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask to stop instead of dying of them; outside the main thread, none."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {
        number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
