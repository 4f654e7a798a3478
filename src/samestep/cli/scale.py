"""`samestep scale`: whether more ranks are faster, and if not, where the speed went."""

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep import __version__
from samestep.cli.app import app
from samestep.cli.options import AsJson, ModeOption, Out, Overrides, Shards
from samestep.cli.targets import job_to_watch, worlds_of
from samestep.errors import ConfigError, LaunchError
from samestep.launch.folder import default_folder, prepared
from samestep.launch.inventory import inventory
from samestep.launch.job import Job
from samestep.launch.limits import Limits, Resumed
from samestep.launch.machine import count_gpus, threads_per_rank
from samestep.launch.starting import Kept
from samestep.launch.warm import Warm
from samestep.launch.watched import Watched
from samestep.report import console as show

PRECISION = 0.03
ROUNDS = 50
SECONDS = 0.4
CELL_S = 15.0
ROUNDS_ANYWAY = 2
"""What a sweep takes for each cell if nobody says how long it may, and the rounds that it makes anyway."""
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|min|h|)")
PRELOADED = ("samestep.probe.timing",)


@app.command()
def scale(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET | -- python SCRIPT [ARGS]...",
            help="A task, or a script as torchrun would start it.",
        ),
    ],
    gpus: Annotated[
        str, typer.Option("--gpus", "-g", help="World sizes to measure; 1 is what others are compared with.")
    ] = "1,2",
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            "-b",
            help="Global batches to measure, as in 64,128.",
            show_default="the program's",
        ),
    ] = None,
    weak: Annotated[
        bool, typer.Option("--weak", help="Let the batch grow with the ranks: --batch is that of one.")
    ] = False,
    precision: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Stop when every step time is known to ± this part.")
    ] = PRECISION,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Stop after 90s, 10m or 2h.", show_default="15 s a cell, and 2 rounds"
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.05, help="Of each run after its first step; at least 16 steps.")
    ] = SECONDS,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds at most.")] = ROUNDS,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads a rank, for every world.", show_default="cores / most ranks"),
    ] = None,
    mode: ModeOption = None,
    shards: Shards = None,
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Of the order of runs.")] = 0,
    out: Out = None,
    cold: Annotated[bool, typer.Option("--cold", help="Start every rank anew; none is forked.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what the program says.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure whether more ranks are faster, and show where the missing speed goes and what to change.

    The same command with the same --out goes on with what was measured before.
    """
    from samestep.report.scaling import Scaling
    from samestep.report.speed import show_speed, word_of
    from samestep.scale.asked import Asked
    from samestep.scale.folder import SweepFolder, is_sweep
    from samestep.scale.measure import measure
    from samestep.scale.program import libraries_of

    mode = mode or "fast"
    job = replace(
        job_to_watch(target, overrides), mode=mode, shards=Resumed.of(None).shards_for(mode, shards)
    )
    worlds, batches = worlds_of(gpus), _batches_of(batch)
    Limits(most=worlds[-1]).check_shards(job.shards)
    check_worlds(worlds, count_gpus())
    limit_s = None if budget is None else seconds_of(budget)
    asked = Asked(
        worlds=tuple(worlds),
        batches=batches,
        is_weak=weak,
        is_task=job.command == "train",
        precision=precision,
        budget_s=CELL_S * len(worlds) * len(batches or (0,)) if limit_s is None else limit_s,
        fewest_rounds=ROUNDS_ANYWAY if limit_s is None else 1,
        most_rounds=rounds,
        seed=seed,
    )
    asked.check()
    each = threads_per_rank(worlds[-1], threads)
    console = show.talk()
    if count_gpus() == 0:
        console.print("no GPU found: CPU ranks (gloo)")
    console.print(f"{each} thread{'s' * (each > 1)} a rank, for every number of ranks")
    name = next(word for word in (*job.script, job.target) if word not in ("", "-m"))
    folder = out or default_folder(f":scale-{Path(name.rpartition(':')[2]).stem}", datetime.now())
    environment = _environment(each)
    preloaded = [*PRELOADED, *libraries_of(job.target, job.script)]
    with prepared(folder, resume=is_sweep(folder)) as at, contextlib.ExitStack() as stack:
        kept = SweepFolder(at)
        kept.begin(_settings(job, asked, each, seconds, environment, is_cold=cold))
        job.write(at)
        warm = Kept if cold else stack.enter_context(Warm(threads=each, modules=preloaded))
        watched = Watched(job=job, threads=each)
        runner = Scaling(watched, at, console, seconds=seconds, warm=warm, is_verbose=verbose)
        with runner:
            measured = measure(asked, kept, runner)
        result = measured.result
        if result is None:
            console.print(f"interrupted before the first run; the same command with --out {folder} goes on")
            raise typer.Exit(130)
        result.target = job.target or " ".join(job.script)
        values = {
            "--batch": (batch, None),
            "--precision": (precision, PRECISION),
            "--budget": (budget, None),
            "--seconds": (seconds, SECONDS),
            "--rounds": (rounds, ROUNDS),
            "--seed": (seed, 0),
            # the environment may have said it, and is not repeated
            "--threads": (each, threads_per_rank(worlds[-1], None, {})),
        }
        flags = [name for name, is_on in (("--weak", weak), ("--cold", cold)) if is_on]
        result.command = _command(target, worlds, overrides, job, values, flags)
        result.threads_per_rank = each
        result.environment = environment | dict(result.environment)
        result.remarks += [] if isinstance(warm, type) else warm.remarks
        kept.write(result)
    show_speed(console, result, folder, is_interrupted=measured.is_interrupted)
    word = word_of(result)
    if as_json:
        show.answer(result.to_json() | {"out": str(folder)})
    else:
        typer.echo(word)
    code = {"not faster": 1, "not told": 2}.get(word, 0)
    raise typer.Exit(130 if measured.is_interrupted else code)


def seconds_of(text: str) -> float:
    """A time with a unit."""
    found = _TIME.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"--budget is {text!r}; give a time with a unit, as in 90s, 10m or 2h.")
    return float(found[1]) * _UNITS[found[2]]


def check_worlds(worlds: list[int], present: int) -> None:
    """Refuse more ranks than there are GPUs, and offer what there is; without GPUs any number will do."""
    if not 0 < present < worlds[-1]:
        return
    fit = [size for size in worlds if size <= present]
    offered = sorted({*fit, present}) if fit == [1] else fit
    asked, smaller = (",".join(map(str, sizes)) for sizes in (worlds, offered))
    offer = f"ask for --gpus {smaller}, or " if offered != [1] else ""
    raise LaunchError(
        f"--gpus {asked} was asked for, and this machine has {present} GPU{'s' * (present > 1)} to use: "
        f"{offer}hide the GPUs (CUDA_VISIBLE_DEVICES=) to measure CPU ranks."
    )


def _batches_of(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--batch is {text!r}; name global batches with commas between them, as in --batch 64,128."
        )
    return tuple(sorted({int(part) for part in parts}))


def _settings(
    job: Job, asked: Any, threads: int, seconds: float, environment: dict[str, Any], *, is_cold: bool
) -> dict[str, Any]:
    """What must be the same for runs to be compared with those of a sweep that is continued."""
    from samestep.scale.program import digest_of
    from samestep.scale.runs import TEXT

    return {
        "program": [job.target, *job.script],
        TEXT: digest_of(job.target, job.script),
        "--set": list(job.overrides),
        "--mode": job.mode,
        "--shards": job.shards,
        "--gpus": list(asked.worlds),
        "--batch": None if asked.batches is None else list(asked.batches),
        "--weak": asked.is_weak,
        "--seed": asked.seed,
        "--seconds": seconds,
        "--cold": is_cold,
        "threads": threads,
        **{name: environment[name] for name in ("samestep", "torch", "python", "host", "num_gpus")},
    }


def _environment(threads: int) -> dict[str, Any]:
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "samestep": __version__,
        "torch": torch,
        "python": platform.python_version(),
        "host": platform.node(),
        "system": platform.platform(),
        "num_cores": cores,
        "num_gpus": count_gpus(),
        "threads_per_rank": threads,
        **inventory(),
    }


def _command(
    target: list[str],
    worlds: list[int],
    overrides: list[str] | None,
    job: Job,
    values: Mapping[str, tuple[Any, Any]],
    flags: list[str],
) -> list[str]:
    """The words after `samestep` that ask for the same again; `values` have what is usual beside them."""
    words = ["scale", "--gpus", ",".join(map(str, worlds)), *flags]
    words += [
        word for name, (value, usual) in values.items() if value != usual for word in (name, str(value))
    ]
    words += ["--mode", job.mode, "--shards", str(job.shards)] if job.shards is not None else []
    words += [word for text in overrides or [] for word in ("--set", text)]
    return words + (target if job.command == "train" else ["--", *target])
