"""The command line: parse, one call, print. Knows no torch; the ranks have it.

Exit codes: 0 good, 1 the answer is "no", 2 it could not be answered, 130 stopped by the user, and for a run
that a scheduler stopped the one that it takes for "start me again": 85 for HTCondor, else 75.
"""

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from samestep import __version__
from samestep.errors import ConfigError, LaunchError, RecordError, SamestepError, TargetError
from samestep.launch.folder import default_folder
from samestep.launch.job import Job, Mode, script_of
from samestep.launch.limits import Limits, Resumed
from samestep.launch.local import Outcome, launch
from samestep.launch.machine import check_ranks, count_gpus, requeue_code
from samestep.launch.stall import AFTER_S as STALL_AFTER_S
from samestep.record import Record
from samestep.report import console as show
from samestep.report.compare import Comparison, compare

_FILES = (".py", ".yaml", ".yml")

app = typer.Typer(
    name="samestep",
    help="Train on any number of GPUs. Take the same step. Know whether it pays.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus", "-g", min=1, help="Ranks, one a GPU; CPU ranks where there is no GPU.  [default: 1]"
    ),
]
GpuLimits = Annotated[
    Limits | None,
    typer.Option(
        "--gpus",
        "-g",
        parser=Limits.parse,
        metavar="N | MIN:MAX",
        help="Ranks, one a GPU; CPU ranks where there is no GPU. With MIN:MAX the run goes on without ranks "
        "that die, while MIN are left.  [default: 1]",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="Change a setting of the task; can be repeated."),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder.  [default: below runs/]")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads a rank.  [default: cores / ranks]")]
Port = Annotated[
    int | None, typer.Option(help="Where the ranks meet on this machine.  [default: a free one]")
]
Timeout = Annotated[float | None, typer.Option(min=1.0, help="Seconds that ranks wait for one another.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")]
Checkpoint = Annotated[
    Path, typer.Option("--checkpoint", "-c", help="A checkpoint, a run (its newest one), or RUN/best.")
]
Data = Annotated[Literal["train", "valid", "test"], typer.Option(help="Which data set of the task.")]
Target = Annotated[str, typer.Argument(help="file.py, file.py:name, package.module:name or config.yaml")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"samestep {__version__}")
        raise typer.Exit


@app.command()
def train(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET | -- python SCRIPT [ARGS]...",
            help="A task, or a script that calls samestep.init().",
        ),
    ],
    gpus: GpuLimits = None,
    mode: Annotated[
        Mode | None,
        typer.Option(help="bitwise: the same bits on any number of ranks.  [default: fast]"),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Shards of a global batch, for bitwise.  [default: 8]")
    ] = None,
    allow_drift: Annotated[
        bool, typer.Option("--allow-drift", help="Go on where bitwise cannot be kept, and record it.")
    ] = False,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    restarts: Annotated[
        int | None,
        typer.Option(min=0, help="How often ranks may be started again.  [default: as --gpus allows]"),
    ] = None,
    requeue_exit_code: Annotated[
        int | None,
        typer.Option(min=0, max=255, help="For a run that was told to stop.  [default: 75; HTCondor: 85]"),
    ] = None,
    threads: Threads = None,
    port: Port = None,
    timeout: Timeout = None,
    stall_after: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a rank that others wait for is named.")
    ] = STALL_AFTER_S,
    as_json: AsJson = False,
) -> None:
    """Train a task, or run a script, on N ranks; prints and records the digest of the trained state."""
    if resume and out is None:
        raise LaunchError("--resume was given without the run to go on with: name its folder with --out.")
    script = script_of(target) if len(target) > 1 else ()
    name = (script[1] if script[0] == "-m" else script[0]) if script else target[0]
    if script and overrides:
        raise ConfigError(
            f"--set {overrides[0]} was given for a script; a script has its own arguments: put it there."
        )
    earlier = Resumed.of(out if resume else None)
    mode = mode or earlier.mode
    job = Job(
        command="script" if script else "train",
        target="" if script else name,
        script=script,
        overrides=earlier.with_overrides(overrides or []),
        mode=mode,
        shards=earlier.shards_for(mode, shards),
        allow_drift=allow_drift or earlier.allow_drift,
        resume=resume,
        timeout_s=timeout,
    )
    limits = replace(gpus or Limits(most=_gpus_of(name)), restarts=restarts)
    limits.check_shards(job.shards)
    outcome = _run(
        job,
        limits,
        out or default_folder(name, datetime.now()),
        port=port,
        threads=threads or (earlier.threads if mode == "bitwise" else None),
        stall_after_s=stall_after,
    )
    if earlier.is_finished and outcome.result.get("steps") == earlier.num_steps:
        show.talk().print(f"the run was finished already, at step {earlier.num_steps}: nothing to do")
    _finish(
        outcome,
        as_json=as_json,
        title="script" if script else "training",
        plain=("digest",),
        requeue=requeue_code() if requeue_exit_code is None else requeue_exit_code,
    )


@app.command()
def evaluate(
    target: Target,
    checkpoint: Checkpoint,
    gpus: Gpus = None,
    data: Data = "valid",
    overrides: Overrides = None,
    out: Out = None,
    threads: Threads = None,
    port: Port = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Measure a checkpoint on a data set, each example exactly once."""
    job = _job_on_checkpoint("evaluate", target, checkpoint, data, overrides, timeout)
    folder = out or default_folder(f":evaluate-{Path(target).stem}", datetime.now())
    outcome = _run(job, Limits(most=gpus or _gpus_of(target)), folder, port=port, threads=threads)
    _finish(outcome, as_json=as_json, title="evaluation")


@app.command()
def predict(
    target: Target,
    checkpoint: Checkpoint,
    gpus: Gpus = None,
    data: Data = "valid",
    overrides: Overrides = None,
    out: Out = None,
    threads: Threads = None,
    port: Port = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Write the outputs of a checkpoint for a data set, each example exactly once, in order."""
    job = _job_on_checkpoint("predict", target, checkpoint, data, overrides, timeout)
    folder = out or default_folder(f":predict-{Path(target).stem}", datetime.now())
    outcome = _run(job, Limits(most=gpus or _gpus_of(target)), folder, port=port, threads=threads)
    _finish(outcome, as_json=as_json, title="prediction")


@app.command()
def demo(
    gpus: Annotated[str, typer.Option("--gpus", "-g", help="Two world sizes: reference, candidate.")] = "1,2",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Train a small real task on one rank and on two, and see whether both took the same steps."""
    sizes = _sizes(gpus)
    base = out or default_folder(":demo", datetime.now())
    target = "samestep.demo:digits"
    records = []
    for size in sizes:
        folder = base / f"{size}-rank{'s' * (size > 1)}"
        job = Job(command="train", target=target)
        outcome = _run(job, Limits(most=size), folder, say_device=size == sizes[0])
        if outcome.status != "finished":
            _finish(outcome, as_json=as_json, title="training")
        records.append(Record.read(folder))
    verdict = compare(records[0].steps(), records[1].steps())
    is_same = verdict.verdict in ("same", "equal")
    if as_json:
        show.answer({"verdict": verdict.verdict, "worlds": sizes, "steps": verdict.num_steps,
                     "first_difference": verdict.first_difference or None, "out": str(base)})  # fmt: skip
    else:
        _tell_demo(show.talk(), sizes, records, verdict)
        typer.echo(verdict.verdict)
    raise typer.Exit(0 if is_same else 1)


def _run(
    job: Job,
    limits: Limits,
    out: Path,
    *,
    port: int | None = None,
    threads: int | None = None,
    stall_after_s: float = STALL_AFTER_S,
    say_device: bool = True,
) -> Outcome:
    if job.target:
        _check_target(job.target)
    console = show.talk()
    present = count_gpus()
    ranks = limits.most
    check_ranks(ranks, present)
    if present == 0 and say_device:
        console.print(f"no GPU found: {ranks} CPU rank{'s' * (ranks > 1)} (gloo)")
    with show.Watch(console, out, title=show.ranks(ranks)) as watch:
        outcome = launch(
            job,
            gpus=limits,
            out=out,
            port=port,
            threads=threads,
            stall_after_s=stall_after_s,
            on_tick=watch,
        )
    watch.tell_findings()
    return outcome


def _finish(
    outcome: Outcome, *, as_json: bool, title: str, plain: tuple[str, ...] = (), requeue: int = 75
) -> NoReturn:
    """Say how a run ended, print its answer and end with the exit code that says the same."""
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
    raise typer.Exit(_exit_code(outcome, requeue))


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


def _job_on_checkpoint(
    command: Literal["evaluate", "predict"],
    target: str,
    checkpoint: Path,
    data: str,
    overrides: list[str] | None,
    timeout: float | None,
) -> Job:
    is_best = checkpoint.name == "best" and checkpoint.parent.is_dir()
    if not checkpoint.exists() and not is_best:
        raise LaunchError(
            f"The checkpoint {checkpoint} was asked for, but nothing is there: correct the path."
        )
    return Job(
        command=command,
        target=target,
        overrides=tuple(overrides or ()),
        checkpoint=str(checkpoint.resolve()),
        data=data,
        timeout_s=timeout,
    )


def _check_target(target: str) -> None:
    """Refuse a file that is not there before anything is started for it."""
    file = target if Path(target).suffix in _FILES else target.rpartition(":")[0]
    if Path(file).suffix in _FILES and not Path(file).exists():
        raise TargetError(f"There is no file {file} (in {Path.cwd()}).")


def _gpus_of(target: str) -> int:
    """The `n_gpus` of a YAML target, else 1."""
    path = Path(target)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return 1
    import yaml

    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise TargetError(f"The target {target} cannot be read as YAML: {reason}") from None
    value = settings.get("n_gpus", 1) if isinstance(settings, dict) else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"n_gpus is {value!r} in {target}; it must be a whole number, 1 or more.")
    return value


def _sizes(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--gpus is {text!r}; the demo compares two world sizes, such as --gpus 1,2.")
    return [int(part) for part in parts]


def _tell_demo(console: Console, sizes: list[int], records: list[Record], verdict: Comparison) -> None:
    rows: dict[str, Any] = {"steps compared": verdict.num_steps}
    for size, record in zip(sizes, records, strict=True):
        result = record.result or {}
        rows[f"{size} rank{'s' * (size > 1)}"] = (
            f"{result.get('examples')} examples, {result.get('seconds', 0.0):.1f} s"
        )
    rows["closest to the limit"] = (
        f"{verdict.worst_difference:.1e} in the loss of step {verdict.worst_step} "
        f"(limit {verdict.worst_tolerance:.1e})"
    )
    show.show_summary(console, "demo: handwritten digits", rows)
    if verdict.verdict in ("same", "equal"):
        console.print(
            f"Both runs took the same {verdict.num_steps} steps: the same learning rates "
            "and numbers of examples, and every loss equal up to floating-point rounding."
        )
    else:
        console.print(
            f"The runs did not take the same steps: {verdict.first_difference or 'nothing to compare'}."
        )


def main() -> None:
    """Run the command line; what Samestep refuses becomes one sentence and exit code 2."""
    _guarded(lambda: app())


def _guarded(call: Callable[[], Any]) -> None:
    try:
        call()
    except SamestepError as error:
        show.show_error(show.talk(), str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
