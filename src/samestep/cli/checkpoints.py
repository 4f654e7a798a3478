"""`samestep evaluate` and `samestep predict`: what is done with a checkpoint."""

from datetime import datetime
from pathlib import Path

from samestep.cli.app import app
from samestep.cli.options import (
    AsJson,
    Checkpoint,
    Data,
    Gpus,
    Out,
    Overrides,
    Port,
    Target,
    Threads,
    Timeout,
)
from samestep.cli.running import finish, run
from samestep.cli.targets import job_on_checkpoint, limits_of, seat_with
from samestep.launch.folder import default_folder
from samestep.launch.limits import Limits


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
    job = job_on_checkpoint("evaluate", target, checkpoint, data, overrides, timeout)
    folder = out or default_folder(f":evaluate-{Path(target).stem}", datetime.now())
    seat = seat_with(out)
    limits = limits_of(Limits(most=gpus) if gpus else None, seat, target)
    outcome = run(job, limits, folder, port=port, seat=seat, threads=threads)
    finish(outcome, as_json=as_json, title="evaluation")


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
    job = job_on_checkpoint("predict", target, checkpoint, data, overrides, timeout)
    folder = out or default_folder(f":predict-{Path(target).stem}", datetime.now())
    seat = seat_with(out)
    limits = limits_of(Limits(most=gpus) if gpus else None, seat, target)
    outcome = run(job, limits, folder, port=port, seat=seat, threads=threads)
    finish(outcome, as_json=as_json, title="prediction")
