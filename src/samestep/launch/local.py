"""Ranks started from this process: heard, stopped and accounted for, until the last of them is gone.

A run has one such process, or one on each machine where a launcher such as srun started it there. Then each
starts its part of the ranks; the first hears and accounts for all, the others only `attend`.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from samestep.errors import LaunchError
from samestep.launch.agent import Agent, environment_of
from samestep.launch.failure import Failure, RankError, cause_of
from samestep.launch.folder import prepared
from samestep.launch.hearing import Beating, Hearing, Silent
from samestep.launch.job import Job
from samestep.launch.limits import Limits
from samestep.launch.losses import Losses
from samestep.launch.machine import check_ranks, free_port, gpus_at, interface_at, threads_per_rank
from samestep.launch.stall import AFTER_S, Stall, Stalls
from samestep.launch.tail import Listener
from samestep.launch.voices import Said
from samestep.launcher import Seat
from samestep.record import RecordWriter, rank_folder, read_json, write_json

TICK_S = 0.05
GRACE_S: Mapping[int, float] = {
    signal.SIGINT: 3.5,
    signal.SIGTERM: 25.0,
    signal.SIGHUP: 25.0,
    signal.SIGUSR1: 600.0,
}
"""From the request to stop until ranks are killed. A person waits 5 s in all, with what follows; schedulers
send SIGTERM 30 s before they kill, and SIGUSR1 as early as they were told to."""
LEAVE_GRACE_S = 10.0
"""From the last rank's end, or the first one's failure, until those that stay on are killed."""

Received = list[tuple[int, float]]
"""The signals that asked to stop, each with the time at which it came."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended; `result` is result.json, `failure` says why where `status` is failed.

    `stopped_by` is the first signal that asked it to stop, whether it still had an effect or not.
    """

    status: Literal["finished", "stopped", "failed"]
    result: dict[str, Any]
    out: Path
    failure: Failure | None = None
    stopped_by: int | None = None


def launch(
    job: Job,
    *,
    gpus: int | Limits,
    out: Path,
    port: int | None = None,
    seat: Seat | None = None,
    threads: int | None = None,
    stall_after_s: float = AFTER_S,
    on_tick: Callable[[list[Said]], None] = lambda said: None,
) -> Outcome:
    """Run a job on `gpus` ranks and return when no process of it is left on this machine.

    They are all on this machine, or shared out over those that have a seat, of which this must be the first.

    With limits instead of a number the others go on from the last checkpoint when a rank dies, while enough
    are left; where the number of restarts is given, a rank that cannot be missed is started again.

    A rank that makes others wait for more than `stall_after_s` is named. `on_tick` is called about 20 times a
    second with what the ranks said since. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are taken over meanwhile:
    the first asks the ranks to save and stop, a second SIGINT kills them.
    """
    limits = gpus if isinstance(gpus, Limits) else Limits(most=gpus)
    seat = seat or Seat.alone(free_port(port))
    env = _environment(job, limits, seat, threads)
    began = time.monotonic()
    with prepared(out, resume=job.resume) as folder:
        job.write(folder)
        listener = Listener(folder, limits.most)
        with _signals() as received:
            agent = Agent(folder=folder, limits=limits, seat=seat, env=env)
            losses = Losses(agent.roll, folder)
            stalls = Stalls(folder, after_s=stall_after_s)
            hearing = Hearing(folder, seat)
            hushed: set[int] = set()

            def news_of_machines() -> list[Said]:
                said = []
                for news in hearing.look(time.monotonic(), lambda index: _ranks_at(agent, index)):
                    if isinstance(news, Silent):
                        if _is_leaving(agent):
                            continue  # a machine that is done need not be heard
                        with contextlib.closing(RecordWriter(folder, 0)) as record:
                            record.finding(news.finding)
                    said.append(Said(news.sentence, ()))
                return said

            def tick() -> None:
                said = listener.hear()
                if (lost := losses.look()) is not None:
                    said += listener.begin_again(agent.size)
                    said.append(Said(lost, ()))
                said += news_of_machines()
                for item in stalls.look(time.monotonic(), _ranks_here(agent)):
                    if seat.count > 1 and isinstance(item, Stall) and item.is_mutual:
                        hushed.add(item.rank)  # they may wait for a rank that is not seen from here
                        continue
                    if item.rank in hushed:
                        hushed.remove(item.rank)
                        continue
                    said += [Said(line, ()) for line in item.told]
                    if isinstance(item, Stall):
                        with contextlib.closing(RecordWriter(folder, item.rank)) as record:
                            record.finding(item.finding)
                on_tick(said)

            try:
                _watch(agent, received, tick, may_leave=lambda: _is_leaving(agent))
                _await_others(agent)
                # one may have been heard again since, if only to say that it leaves
                on_tick(news_of_machines())
            finally:
                hearing.close()
                agent.kill()
            on_tick(listener.close())
            losses.look()
            outcome = _outcome(agent, job, received, seconds=time.monotonic() - began)
            return _with_hint(outcome, agent)


def attend(job: Job, *, gpus: Limits, out: Path, seat: Seat, threads: int | None = None) -> bool:
    """Start this seat's part of the ranks and return when they are gone; whether that was in good order.

    What they did is for the first seat to say.
    """
    env = _environment(job, gpus, seat, threads)
    with _signals() as received:
        agent = Agent(folder=out.resolve(), limits=gpus, seat=seat, env=env)
        beating = Beating(out.resolve(), seat, host=os.uname().nodename)
        try:
            _watch(
                agent,
                received,
                lambda: beating.beat(time.monotonic()),
                # those who would agree on what comes next cannot, and would wait for the network for ever
                may_leave=lambda: agent.has_lost_all and beating.is_cut_off(time.monotonic()),
            )
        finally:
            beating.close()
            agent.kill()
        is_good = agent.is_good or bool(received) or _are_done(agent)
        if not is_good:
            agent.pass_on_talk()
        return is_good


def _environment(job: Job, limits: Limits, seat: Seat, threads: int | None) -> dict[str, str]:
    if limits.most % seat.count:
        raise LaunchError(
            f"{limits.most} ranks were asked for, and {seat.launcher} started {seat.count} processes, which "
            f"cannot have equally many: ask for a multiple of {seat.count} with --gpus."
        )
    ranks = limits.most // seat.count
    check_ranks(ranks, len(gpus_at(seat, ranks)))
    seat.check_meeting()
    # in bitwise mode the number of ranks decides nothing, nor may it by way of the threads
    threads = threads_per_rank(ranks * seat.local_count if job.shards is None else job.shards, threads)
    interface = "lo" if seat.count == 1 else interface_at(seat)
    return environment_of(os.environ, threads=threads, job=job, interface=interface)


def _ranks_here(agent: Agent) -> list[int]:
    """The ranks whose processes can be looked at from here; before they are started, all that will be."""
    if agent.seat.count == 1:
        return list(range(agent.size))
    return _ranks_at(agent, agent.seat.index)


def _ranks_at(agent: Agent, seat: int) -> list[int]:
    return sorted(entry.rank for entry in agent.roll.started if entry.seat == seat)


def _await_others(agent: Agent) -> None:
    """Give ranks on other machines the time to write down how they ended."""
    deadline = time.monotonic() + LEAVE_GRACE_S
    while agent.seat.count > 1 and agent.is_good and not _is_leaving(agent) and time.monotonic() < deadline:
        time.sleep(TICK_S)


def _watch(
    agent: Agent, received: Received, tick: Callable[[], None], *, may_leave: Callable[[], bool]
) -> None:
    """Wait for the agents' end; make them end when asked to, or when ranks stay on for no good reason."""
    leaving_at = None
    while agent.is_running:
        tick()
        now = time.monotonic()
        if leaving_at is None and may_leave():
            leaving_at = now
        if received:
            number = signal.SIGTERM if received[0][0] == signal.SIGHUP else received[0][0]
            agent.ask_ranks_to_stop(number)
        if (
            sum(number == signal.SIGINT for number, _ in received) > 1
            or any(now - then > GRACE_S[number] for number, then in received)
            or (leaving_at is not None and now - leaving_at > LEAVE_GRACE_S)
        ):
            return
        time.sleep(TICK_S)


def _is_leaving(agent: Agent) -> bool:
    return _are_done(agent) or any(entry.verdict == "failed" for entry in agent.roll.ended)


def _are_done(agent: Agent) -> bool:
    return all((rank_folder(agent.folder, rank) / "done").exists() for rank in range(agent.size))


def _outcome(agent: Agent, job: Job, received: Received, *, seconds: float) -> Outcome:
    folder = agent.folder
    result = read_json(folder / "result.json")
    done = frozenset(r for r in range(agent.size) if (rank_folder(folder, r) / "done").exists())
    codes, causes = agent.exit_codes()
    errors = _errors(agent)
    # what the first rank of a training writes is about all of them, and the last thing that is done
    is_whole = len(done) == agent.size or (
        job.command == "train" and 0 in done and not errors and all(code < 0 for code in codes.values())
    )
    if result is not None and is_whole:
        heard = [number for number, _ in received] or agent.signals_heard()
        return Outcome(
            status="stopped" if result.get("status") == "stopped" else "finished",
            result=result,
            out=folder,
            stopped_by=heard[0] if heard else None,
        )
    failure = None
    stopped_by = received[0][0] if received else None
    genuine = [error for error in errors if not error.is_lost_peer]
    if stopped_by is None or (genuine and stopped_by != signal.SIGINT):
        cause = cause_of(
            size=agent.size,
            errors=errors,
            exit_codes=codes,
            first_failed=causes[0] if causes else None,
            done=done,
        )
        failure = cause or Failure(
            rank=None,
            sentence=f"The {agent.size} ranks could not be started; torch's agent said: {agent.last_words()}",
        )
    status: Literal["stopped", "failed"] = "stopped" if failure is None else "failed"
    ending: Mapping[str, Any] = {
        "status": status,
        "command": job.command,
        "mode": job.mode,
        "world_size": agent.size,
        "restarts": max(0, agent.roll.round - 1),
        "seconds": seconds,
        "reason": failure.sentence if failure else "killed when it was asked to stop",
    }
    progress = read_json(folder / "progress.json") or {}
    # a script that was killed has not told how far it came
    steps = progress.get("step", None if job.command == "script" else 0)
    result = {"digest": None, "steps": steps, "examples": None, **(result or {}), **ending}
    write_json(folder / "result.json", result)
    return Outcome(status=status, result=result, out=folder, failure=failure, stopped_by=stopped_by)


def _with_hint(outcome: Outcome, agent: Agent) -> Outcome:
    """Say why a run that may begin again did not, and what to do."""
    failure, limits = outcome.failure, agent.limits
    if failure is None or not failure.is_death or limits.most_rounds == 1:
        return outcome
    num_left = agent.size - len(agent.exit_codes()[1])
    if limits.restarts is not None:
        why = f"--restarts {limits.restarts} lets ranks be started again no more often"
    elif num_left < limits.least:
        why = f"{num_left} of {limits.most} ranks are left, and --gpus {limits} asks for {limits.least}"
    else:
        why = "the ranks were started again too often"
    sentence = f"{failure.sentence}; {why}: go on from the last checkpoint with --resume."
    result = outcome.result | {"reason": sentence}
    write_json(outcome.out / "result.json", result)
    return replace(outcome, failure=replace(failure, sentence=sentence), result=result)


def _errors(agent: Agent) -> list[RankError]:
    errors = []
    for rank in range(agent.size):
        fields = read_json(rank_folder(agent.folder, rank) / "error.json")
        if fields is not None:
            errors.append(RankError.of(rank, fields))
    return errors


@contextlib.contextmanager
def _signals() -> Iterator[Received]:
    """Collect the signals that ask to stop instead of dying of them; outside the main thread, none."""
    received: Received = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: FrameType | None) -> None:
        received.append((number, time.monotonic()))

    before = {number: signal.signal(number, note) for number in GRACE_S}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
