"""The command line: parse, one call, print. Knows no torch; the ranks have it.

Exit codes: 0 good, 1 the answer is "no", 2 it could not be answered, 130 stopped by the user, and for a run
that a scheduler stopped the one that it takes for "start me again": 85 for HTCondor, else 75.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from samestep import __version__
from samestep.errors import ConfigError, LaunchError, RecordError, SamestepError, TargetError
from samestep.findings import Finding
from samestep.launch.folder import default_folder, prepared
from samestep.launch.job import Job, Mode, script_of
from samestep.launch.limits import Limits, Resumed
from samestep.launch.local import Outcome, launch
from samestep.launch.machine import check_ranks, count_gpus, requeue_code, threads_per_rank
from samestep.launch.stall import AFTER_S as STALL_AFTER_S
from samestep.launch.voices import Said
from samestep.launch.watched import ENOUGH_S, STALL_S, Watched
from samestep.observations import STEPS_IN_FULL
from samestep.record import Record, read_json, write_json
from samestep.report import console as show
from samestep.report.compare import Comparison, compare
from samestep.verify.online import EVERY, Online, forget_observations
from samestep.verify.online_pace import STAND_S
from samestep.verify.online_run import Looking, follow, watch_program

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
Every = Annotated[int, typer.Option(min=1, help="Of a run that is watched: steps between two looks.")]
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
    watch: Annotated[
        bool, typer.Option("--watch", help="Tell the moment when ranks no longer train alike.")
    ] = False,
    every: Every = EVERY,
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
        watch_every=every if watch else None,
    )
    limits = replace(gpus or Limits(most=_gpus_of(name)), restarts=restarts)
    limits.check_shards(job.shards)
    folder = out or default_folder(name, datetime.now())
    looking = _looking(folder, every) if watch else None
    outcome = _run(
        job,
        limits,
        folder,
        port=port,
        threads=threads or (earlier.threads if mode == "bitwise" else None),
        stall_after_s=stall_after,
        looking=looking,
    )
    if earlier.is_finished and outcome.result.get("steps") == earlier.num_steps:
        show.talk().print(f"the run was finished already, at step {earlier.num_steps}: nothing to do")
    _finish(
        outcome,
        as_json=as_json,
        title="script" if script else "training",
        plain=("digest",),
        requeue=requeue_code() if requeue_exit_code is None else requeue_exit_code,
        is_no=looking is not None and bool(looking.online.findings),
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


@app.command()
def verify(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET | -- python SCRIPT [ARGS]...",
            help="A task, or a script as torchrun would start it.",
        ),
    ],
    gpus: Annotated[
        str, typer.Option("--gpus", "-g", help="World sizes to compare; 1 is the reference.")
    ] = "1,2",
    steps: Annotated[int, typer.Option(min=1, help="Steps to look into.")] = STEPS_IN_FULL,
    enough: Annotated[
        float, typer.Option(min=0.0, help="Seconds of training after which a run with all steps is ended.")
    ] = ENOUGH_S,
    stall_after: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which ranks that wait for one another are ended.")
    ] = STALL_S,
    overrides: Overrides = None,
    out: Out = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads a rank.  [default: cores / most ranks]")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what the program says.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether a program trains the same on N ranks as on one, and if not, why and what to change."""
    from samestep.report.material import Verification
    from samestep.report.verdict import payload, show_verdict
    from samestep.report.verifying import Verifying
    from samestep.verify import plan

    job = _job_to_watch(target, overrides)
    worlds = _worlds(gpus)
    most, present = worlds[-1], count_gpus()
    check_ranks(most, present)
    console = show.talk()
    if present == 0:
        console.print("no GPU found: CPU ranks (gloo)")
    command = ["verify", "--gpus", ",".join(map(str, worlds)), "--steps", str(steps)]
    command += [word for text in overrides or [] for word in ("--set", text)]
    command += target if job.command == "train" else ["--", *target]
    name = next(word for word in (*job.script, job.target) if word not in ("", "-m"))
    folder = out or default_folder(f":verify-{Path(name.rpartition(':')[2]).stem}", datetime.now())
    watched = Watched(
        job=job,
        threads=threads_per_rank(most, threads),
        steps=steps,
        enough_s=enough,
        stall_s=stall_after,
    )
    with prepared(folder, resume=False) as at:
        with Verifying(watched, at, console, num_worlds=len(worlds), is_verbose=verbose) as runner:
            verification = plan.verify(runner, worlds)
        value = payload(verification, whys=runner.whys, command=command, out=folder)
        write_json(at / "verdict.json", value)
    answer = read_json(at / "verdict.json") or {}
    show_verdict(console, Verification.model_validate(answer), folder)
    if as_json:
        show.answer(answer)
    else:
        typer.echo(verification.verdict)
    raise typer.Exit({"same": 0, "equal": 0, "different": 1}.get(verification.verdict, 2))


@app.command()
def watch(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="-- python SCRIPT [ARGS]... | DIR",
            help="A script as torchrun would start it, or the folder of ranks that run below the probe.",
        ),
    ],
    gpus: Gpus = None,
    every: Every = EVERY,
    stall_after: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which ranks that stand still apart are named.")
    ] = STAND_S,
    out: Out = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Run a script, or follow one, and tell the moment when its ranks no longer train alike."""
    console = show.talk()

    def tell(finding: Finding) -> None:
        show.show_findings(console, [finding.to_json()])

    def say(said: Sequence[Said]) -> None:
        for line in said:
            typer.echo(str(line), err=as_json)

    if len(program) == 1 and Path(program[0]).is_dir():
        run = follow(Path(program[0]), every=every, on_finding=tell)
    else:
        script = script_of(program)
        ranks = gpus or 1
        if count_gpus() == 0:
            console.print(f"no GPU found: {ranks} CPU rank{'s' * (ranks > 1)} (gloo)")
        run = watch_program(
            script,
            world_size=ranks,
            out=out or default_folder(script[1] if script[0] == "-m" else script[0], datetime.now()),
            threads=threads_per_rank(ranks, threads),
            every=every,
            stand_s=stall_after,
            on_said=say,
            on_finding=tell,
        )
    if run.failure is not None:
        show.show_failure(console, run.failure, run.folder)
    if run.num_steps == 0:
        console.print("no step of an optimizer was seen: there was nothing to look at")
    if as_json:
        found = [finding.to_json() for finding in run.findings]
        show.answer(
            {"exit_code": run.exit_code, "steps": run.num_steps, "findings": found, "out": str(run.folder)}
        )
    raise typer.Exit(run.exit_code or int(bool(run.findings)))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What --out of another command was given.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page.  [default: report.html in DIR]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make one HTML page of a verdict or a run; it opens from disk and needs no network."""
    from samestep.report.page import page_of

    page = page_of(folder)
    path = folder / "report.html" if out is None else out
    num_bytes = page.write(path)
    if as_json:
        show.answer({"out": str(path), "bytes": num_bytes, "sections": page.sections})
    else:
        typer.echo(path)


def _run(
    job: Job,
    limits: Limits,
    out: Path,
    *,
    port: int | None = None,
    threads: int | None = None,
    stall_after_s: float = STALL_AFTER_S,
    say_device: bool = True,
    looking: Looking | None = None,
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

        def on_tick(said: list[Said]) -> None:
            watch(said)
            if looking is not None:
                looking()

        outcome = launch(
            job,
            gpus=limits,
            out=out,
            port=port,
            threads=threads,
            stall_after_s=stall_after_s,
            on_tick=on_tick,
        )
    if looking is not None:
        looking.look(to_the_end=True)
    watch.tell_findings()
    return outcome


def _looking(folder: Path, every: int) -> Looking:
    forget_observations(folder)
    return Looking(Online(folder.resolve(), every=every))


def _finish(
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


def _worlds(text: str) -> list[int]:
    """The world sizes to compare, in order, each once; 1 is always among them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--gpus is {text!r}; name world sizes with commas between them, as in --gpus 1,2,4."
        )
    sizes = sorted({int(part) for part in parts})
    if sizes == [1]:
        raise ConfigError(
            f"--gpus is {text!r}, which leaves nothing to compare with 1 rank: add a world, as in --gpus 1,2."
        )
    if sizes[0] != 1:
        show.talk().print(f"1 rank is added to --gpus {text}: it is what the others are compared with")
    return sorted({1, *sizes})


def _job_to_watch(target: list[str], overrides: list[str] | None) -> Job:
    """The job of a TARGET, or of a script after `--`, to be run as it is."""
    if len(target) == 1:
        _check_target(target[0])
        return Job(command="train", target=target[0], overrides=tuple(overrides or ()))
    if overrides:
        raise ConfigError(
            f"--set {overrides[0]} was given for a script; a script has its own arguments: put it there."
        )
    return Job(command="script", script=script_of(target))


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
