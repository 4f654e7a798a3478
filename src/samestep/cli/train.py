"""`samestep train`."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated

import typer

from samestep.cli.app import app
from samestep.cli.options import (
    AsJson,
    Every,
    GpuLimits,
    ModeOption,
    Out,
    Overrides,
    Port,
    Shards,
    Threads,
    Timeout,
)
from samestep.cli.running import finish, looking_at, run
from samestep.cli.targets import limits_of, seat_with
from samestep.errors import ConfigError, LaunchError, listed
from samestep.launch.folder import default_folder
from samestep.launch.job import Job, script_of
from samestep.launch.limits import Resumed
from samestep.launch.machine import requeue_code
from samestep.launch.stall import AFTER_S as STALL_AFTER_S
from samestep.report import console as show
from samestep.verify.online import EVERY


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
    mode: ModeOption = None,
    shards: Shards = None,
    allow_drift: Annotated[
        bool, typer.Option("--allow-drift", help="Go on where bitwise cannot be kept, and record it.")
    ] = False,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    restarts: Annotated[
        int | None,
        typer.Option(min=0, help="How often ranks may be started again.", show_default="as --gpus allows"),
    ] = None,
    requeue_exit_code: Annotated[
        int | None,
        typer.Option(
            min=0, max=255, help="For a run that was told to stop.", show_default="75; HTCondor: 85"
        ),
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
    if changed := earlier.changed_by(overrides or []):
        show.talk().print(
            f"{listed([f'--set {text}' for text in changed])} came after the run had begun: its checkpoint's "
            "weights, optimizer (with its rates) and schedule go on as they are, all else is as set now"
        )
    seat = seat_with(out)
    limits = replace(limits_of(gpus, seat, name), restarts=restarts)
    limits.check_shards(job.shards)
    folder = out or default_folder(name, datetime.now())
    looking = looking_at(folder, every) if watch else None
    outcome = run(
        job,
        limits,
        folder,
        port=port,
        seat=seat,
        threads=threads or (earlier.threads if mode == "bitwise" else None),
        stall_after_s=stall_after,
        looking=looking,
    )
    if earlier.is_finished and outcome.result.get("steps") == earlier.num_steps:
        show.talk().print(f"the run was finished already, at step {earlier.num_steps}: nothing to do")
    finish(
        outcome,
        as_json=as_json,
        title="script" if script else "training",
        plain=("digest",),
        requeue=requeue_code() if requeue_exit_code is None else requeue_exit_code,
        is_no=looking is not None and bool(looking.online.findings),
    )
