"""`samestep verify` and `samestep watch`: programs as they are, below the probe."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from samestep.cli.app import app
from samestep.cli.options import AsJson, Every, Gpus, Out, Overrides, Threads
from samestep.cli.targets import job_to_watch, worlds_of
from samestep.errors import LaunchError
from samestep.findings import Finding
from samestep.launch.folder import default_folder, prepared
from samestep.launch.job import script_of
from samestep.launch.machine import check_ranks, count_gpus, threads_per_rank
from samestep.launch.voices import Said
from samestep.launch.watched import ENOUGH_S, STALL_S, Watched
from samestep.observations import STEPS_IN_FULL
from samestep.record import read_json, write_json
from samestep.report import console as show
from samestep.verify.online import EVERY
from samestep.verify.online_pace import STAND_S
from samestep.verify.online_run import follow, watch_program


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
        int | None, typer.Option(min=1, help="Threads a rank.", show_default="cores / most ranks")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what the program says.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether a program trains the same on N ranks as on one, and if not, why and what to change."""
    from samestep.report.material import Verification
    from samestep.report.verdict import payload, show_verdict
    from samestep.report.verifying import Verifying
    from samestep.verify import plan

    job = job_to_watch(target, overrides)
    worlds = worlds_of(gpus)
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
    elif len(program) == 1:
        raise LaunchError(
            f"{program[0]} is no folder of ranks that run below the probe: to run a script, write `-- python "
            "script.py ARGS`; to watch a task, `samestep train TARGET --watch`."
        )
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
