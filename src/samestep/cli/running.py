"""One run from its start to its exit code: shown while it goes on, its answer printed at the end."""

import signal
from pathlib import Path
from typing import Any, NoReturn

import typer

from samestep.cli.targets import check_target
from samestep.errors import RecordError
from samestep.launch.job import Job
from samestep.launch.limits import Limits
from samestep.launch.local import Outcome, attend, launch
from samestep.launch.machine import check_ranks, count_gpus, gpus_at
from samestep.launch.stall import AFTER_S as STALL_AFTER_S
from samestep.launch.voices import Said
from samestep.launcher import Seat
from samestep.record import Record
from samestep.report import console as show
from samestep.verify.online import Online, forget_observations
from samestep.verify.online_run import Looking


def run(
    job: Job,
    limits: Limits,
    out: Path,
    *,
    port: int | None = None,
    seat: Seat | None = None,
    threads: int | None = None,
    stall_after_s: float = STALL_AFTER_S,
    say_device: bool = True,
    looking: Looking | None = None,
) -> Outcome:
    if job.target:
        check_target(job.target)
    console = show.talk()
    ranks = limits.most
    if seat is None:
        present = count_gpus()
        check_ranks(ranks, present)
    else:
        present = len(gpus_at(seat, ranks // seat.count))
        if not seat.is_first:
            raise typer.Exit(0 if attend(job, gpus=limits, out=out, seat=seat, threads=threads) else 2)
        console.print(f"{seat}: {show.ranks(ranks)} meet at {seat.address}:{seat.port}")
    if present == 0 and say_device:
        console.print(f"no GPU found: {ranks} CPU rank{'s' * (ranks > 1)} (gloo)")
    with show.Watch(console, out, title=show.ranks(ranks)) as watch:

        def on_tick(said: list[Said]) -> None:
            watch(said)
            if looking is not None:
                looking()

        outcome = launch(
            job,
            gpus=limits,
            out=out,
            port=port,
            seat=seat,
            threads=threads,
            stall_after_s=stall_after_s,
            on_tick=on_tick,
        )
    if looking is not None:
        looking.look(to_the_end=True)
    watch.tell_findings()
    return outcome


def looking_at(folder: Path, every: int) -> Looking:
    forget_observations(folder)
    return Looking(Online(folder.resolve(), every=every))


def finish(
    outcome: Outcome,
    *,
    as_json: bool,
    title: str,
    plain: tuple[str, ...] = (),
    requeue: int = 75,
    is_no: bool = False,
) -> NoReturn:
    """Say how a run ended, print its answer and end with the exit code that says the same.

    With `is_no` the answer of a run that ended well is "no".
    """
    console = show.talk()
    try:
        findings = Record.read(outcome.out).findings()
    except RecordError:
        findings = []
    if outcome.failure is not None:
        show.show_failure(console, outcome.failure, outcome.out)
    else:
        known = {"command", *plain}
        values = {n: v for n, v in outcome.result.items() if not isinstance(v, list) and n not in known}
        if not values.get("restarts"):
            values.pop("restarts", None)
        show.show_summary(console, f"{title} {outcome.status}", _flat(values) | {"out": str(outcome.out)})
    if as_json:
        contract = {"digest": None, "world_size": None, "mode": None, "steps": None, "examples": None}
        show.answer(contract | outcome.result | {"out": str(outcome.out), "findings": findings})
    elif outcome.failure is None:
        for name in plain:
            if outcome.result.get(name):
                typer.echo(outcome.result[name])
    raise typer.Exit(_exit_code(outcome, requeue) or int(is_no))


def _exit_code(outcome: Outcome, requeue: int) -> int:
    if outcome.status == "failed":
        return 2
    if outcome.stopped_by == signal.SIGINT:
        return 130
    if outcome.status == "finished":
        return 0
    # a run that stopped by itself, on a loss that is not finite, is an answer: no
    return 1 if outcome.stopped_by is None else requeue


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= value
        elif name != "status":
            flat[name] = value
    return flat
