"""The command line: parse, one call, print. Knows no torch; the ranks have it.

Exit codes: 0 good, 1 the answer is "no", 2 it could not be answered, 130 stopped by the user.
"""

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from samestep import __version__
from samestep.errors import ConfigError, LaunchError, RecordError, SamestepError, TargetError
from samestep.launch.folder import default_folder
from samestep.launch.job import Job, script_of
from samestep.launch.local import Outcome, launch
from samestep.launch.machine import check_ranks, count_gpus
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
    gpus: Gpus = None,
    mode: Annotated[Literal["fast", "bitwise"], typer.Option(help="How gradients are summed.")] = "fast",
    shards: Annotated[int | None, typer.Option(min=1, help="Shards of a global batch, for bitwise.")] = None,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    threads: Threads = None,
    port: Port = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Train a task, or run a script, on N ranks; prints and records the digest of the trained state."""
    if mode == "bitwise" or shards is not None:
        raise ConfigError(
            "--mode bitwise was asked for, which this version of Samestep does not have yet: "
            "use --mode fast, without --shards."
        )
    if resume and out is None:
        raise LaunchError("--resume was given without the run to go on with: name its folder with --out.")
    script = script_of(target) if len(target) > 1 else ()
    name = (script[1] if script[0] == "-m" else script[0]) if script else target[0]
    if script and overrides:
        raise ConfigError(
            f"--set {overrides[0]} was given for a script; a script has its own arguments: put it there."
        )
    job = Job(
        command="script" if script else "train",
        target="" if script else name,
        script=script,
        overrides=_with_earlier(out if resume else None, overrides or []),
        mode=mode,
        resume=resume,
        timeout_s=timeout,
    )
    ranks = gpus or _gpus_of(name)
    outcome = _run(job, ranks, out or default_folder(name, datetime.now()), port=port, threads=threads)
    _finish(outcome, as_json=as_json, title="script" if script else "training", plain=("digest",))


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
    outcome = _run(job, gpus or _gpus_of(target), folder, port=port, threads=threads)
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
    outcome = _run(job, gpus or _gpus_of(target), folder, port=port, threads=threads)
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
        outcome = _run(Job(command="train", target=target), size, folder, say_device=size == sizes[0])
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
    ranks: int,
    out: Path,
    *,
    port: int | None = None,
    threads: int | None = None,
    say_device: bool = True,
) -> Outcome:
    if job.target:
        _check_target(job.target)
    console = show.talk()
    present = count_gpus()
    check_ranks(ranks, present)
    if present == 0 and say_device:
        console.print(f"no GPU found: {ranks} CPU rank{'s' * (ranks > 1)} (gloo)")
    with show.Watch(console, out, title=f"{ranks} rank{'s' * (ranks > 1)}") as watch:
        outcome = launch(job, gpus=ranks, out=out, port=port, threads=threads, on_tick=watch)
    watch.tell_findings()
    return outcome


def _finish(outcome: Outcome, *, as_json: bool, title: str, plain: tuple[str, ...] = ()) -> NoReturn:
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
        show.show_summary(console, f"{title} {outcome.status}", _flat(values) | {"out": str(outcome.out)})
    if as_json:
        contract = {"digest": None, "world_size": None, "mode": None, "steps": None, "examples": None}
        show.answer(contract | outcome.result | {"out": str(outcome.out), "findings": findings})
    elif outcome.failure is None:
        for name in plain:
            if outcome.result.get(name):
                typer.echo(outcome.result[name])
    # a run that stopped by itself, on a loss that is not finite, is an answer: no
    code = 130 if outcome.was_interrupted else {"finished": 0, "stopped": 1}.get(outcome.status, 2)
    raise typer.Exit(code)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= value
        elif name != "status":
            flat[name] = value
    return flat


def _with_earlier(run: Path | None, overrides: list[str]) -> tuple[str, ...]:
    """The overrides of the run that is resumed, and the new ones in their place or after them."""
    earlier = Job.read(run).overrides if run is not None and (run / "job.json").exists() else ()
    by_key = {text.partition("=")[0]: text for text in (*earlier, *overrides)}
    return tuple(by_key.values())


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
