"""`samestep submit`."""

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from samestep.cli.app import app
from samestep.cli.jobs import command_for, follow_or_leave, tell
from samestep.cli.options import AsJson, Out, Overrides
from samestep.cli.targets import check_target
from samestep.cluster.engines import Name, engine_named
from samestep.cluster.ledger import Ledger
from samestep.cluster.like import threads_like, times_like
from samestep.cluster.plan import Wish, pairs_of, requests_of, sweep_of
from samestep.cluster.request import Command, bytes_of, seconds_of
from samestep.cluster.submission import files_of
from samestep.cluster.submission import submit as hand_over
from samestep.errors import ConfigError
from samestep.launch.folder import default_folder
from samestep.launch.job import Mode, script_of
from samestep.launch.limits import Limits
from samestep.report import console as show
from samestep.report.jobs_table import EVERY_S

Parsed = TypeVar("Parsed")


@app.command()
def submit(
    target: Annotated[
        list[str],
        typer.Argument(metavar="TARGET | -- python SCRIPT [ARGS]...", help="A task, or a script for ranks."),
    ],
    gpus: Annotated[str, typer.Option("--gpus", "-g", help="World sizes; one job each.")] = "1",
    engine: Annotated[Name, typer.Option("--on", help="The scheduler.")] = "slurm",
    command: Annotated[Command, typer.Option("--run", help="What the jobs do.")] = "train",
    mode: Annotated[Mode | None, typer.Option(help="As for train.")] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="As for train.")] = None,
    overrides: Overrides = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V1,V2", help="A job for each value of a setting, as an array; can be repeated."
        ),
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="The most ranks on one node.")] = 8,
    is_on_cpu: Annotated[bool, typer.Option("--cpu", help="Ask for no GPUs; CPU ranks.")] = False,
    cpus: Annotated[
        int | None,
        typer.Option(
            "--cpus-per-gpu", min=1, help="CPUs, and threads, of a rank.", show_default="as --like, or 1"
        ),
    ] = None,
    memory: Annotated[str | None, typer.Option(metavar="16G", help="Memory of a rank.")] = None,
    time: Annotated[str | None, typer.Option(metavar="2h", help="The time limit of each job.")] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A run, or a sweep with its advice, that tells the time limits.",
        ),
    ] = None,
    gpu_type: Annotated[str | None, typer.Option(help="The kind of GPU, as the cluster names it.")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="40G", help="HTCondor: of a GPU, at least.")
    ] = None,
    gpu_capability: Annotated[float | None, typer.Option(help="HTCondor: of a GPU, at least.")] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm's.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm's.")] = None,
    qos: Annotated[str | None, typer.Option(help="Slurm's.")] = None,
    constraint: Annotated[str | None, typer.Option(help="Slurm's.")] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT | auto | local",
            help="Ray: the cluster; local starts one of this machine for each job.",
            show_default="RAY_ADDRESS, or local",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="Any other option of the scheduler; can be repeated."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="For the job's environment; can be repeated."),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(help="HTCondor: a conda env.yml, a .tar.gz of an environment, or a container image."),
    ] = None,
    transfer: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="HTCondor: a file to send along; can be repeated."),
    ] = None,
    out: Out = None,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Show every file; hand over nothing.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Look on until all are over; Ctrl-C leaves them running.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Hand jobs to a scheduler, one for each number of ranks; their records come to --out as if run here."""
    worlds = _worlds(gpus)
    is_script = len(target) > 1
    name = _check(target, overrides)
    settings = [word for text in overrides or [] for word in ("--set", text)]
    settings += _mode_words(command, mode, shards, max(worlds))
    folder = (out or default_folder(f":jobs-{Path(name).stem}", datetime.now())).resolve()
    limits = _times(command, worlds, time, like)
    wish = Wish(
        engine=engine,
        command=command,
        target=tuple(target) if is_script else (target[0],),
        worlds=tuple(worlds),
        settings=tuple(settings),
        sweep=sweep_of(sweep or []),
        per_node=gpus_per_node,
        device="cpu" if is_on_cpu else "gpu",
        gpu_type=gpu_type,
        gpu_memory_bytes=_parsed("--gpu-memory", bytes_of, gpu_memory),
        gpu_capability=gpu_capability,
        cpus_per_rank=cpus or (threads_like(like) if like is not None else None) or 1,
        memory_per_rank_bytes=_parsed("--memory", bytes_of, memory),
        time_s=limits,
        env=pairs_of("--env", env or []),
        options=_options(
            engine,
            {"partition": partition, "account": account, "qos": qos, "constraint": constraint},
            address,
            pairs_of("--option", options or []),
        ),
        environment=environment,
        transfer=tuple(transfer or ()),
    )
    requests = requests_of(wish, home=folder, workdir=Path.cwd())
    scheduler = engine_named(engine)
    if is_dry:
        texts = {
            path: text for request in requests for path, text in files_of(scheduler, request, folder).items()
        }
        if as_json:
            show.answer({"files": {str(path): text for path, text in texts.items()}, "out": str(folder)})
        else:
            for path, text in texts.items():
                typer.echo(f"==> {path} <==\n{text}")
        return
    entries = hand_over(scheduler, requests, folder)
    console = show.talk()
    for entry in entries:
        console.print(f"{entry.name}: {engine} job {entry.id}", markup=False)
    if wait:
        tell(follow_or_leave(Ledger(folder), EVERY_S), as_json=as_json, folder=folder)
    console.print(f"see them with: {command_for(folder)}", markup=False)
    if as_json:
        ids = [{"id": entry.id, "name": entry.name, "out": str(folder / entry.name)} for entry in entries]
        show.answer({"jobs": ids, "out": str(folder)})
    else:
        for entry in entries:
            typer.echo(entry.id)


def _check(target: Sequence[str], overrides: list[str] | None) -> str:
    """The name of what is to run, refused if it is not there."""
    if len(target) == 1:
        check_target(target[0])
        return target[0].rpartition(":")[2]
    if overrides:
        raise ConfigError(
            f"--set {overrides[0]} was given for a script; a script has its own arguments: put it there."
        )
    script = script_of(list(target))
    return script[1] if script[0] == "-m" else script[0]


def _times(command: Command, worlds: Sequence[int], time: str | None, like: Path | None) -> dict[int, int]:
    """The time limits by world size, if there are any."""
    if like is None:
        limit = _parsed("--time", seconds_of, time)
        return {} if limit is None else dict.fromkeys(worlds, limit)
    if time is not None:
        raise ConfigError(f"--time {time} and --like {like} both say how long a job may take: leave one out.")
    if command != "train":
        raise ConfigError(
            f"--like {like} tells how long a training takes, and --run is {command}: give --time."
        )
    return times_like(like, worlds)


def _mode_words(command: Command, mode: Mode | None, shards: int | None, most: int) -> list[str]:
    if command != "train" and (mode or shards):
        raise ConfigError(f"--mode and --shards are for trainings, not for --run {command}: leave them out.")
    if mode == "bitwise":
        Limits(most=most).check_shards(shards or 8)
    words = ["--mode", mode] if mode else []
    return words + (["--shards", str(shards)] if shards else [])


def _options(
    engine: Name, site: dict[str, str | None], address: str | None, more: dict[str, str]
) -> dict[str, str]:
    given = {name: value for name, value in site.items() if value is not None}
    if given and engine != "slurm":
        first = next(iter(given))
        raise ConfigError(f"--{first} {given[first]} is Slurm's, and --on is {engine}: leave it out.")
    if engine == "ray":
        address = address or os.environ.get("RAY_ADDRESS")
    elif address is not None:
        raise ConfigError(f"--address {address} is Ray's, and --on is {engine}: leave it out.")
    return given | more | ({"address": address} if address else {})


def _worlds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--gpus is {text!r}; name world sizes with commas between them, as in --gpus 1,2,4."
        )
    return sorted({int(part) for part in parts})


def _parsed(option: str, parse: Callable[[str], Parsed], text: str | None) -> Parsed | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
