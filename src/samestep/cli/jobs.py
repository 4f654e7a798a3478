"""`samestep jobs`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from samestep.cli.app import app
from samestep.cli.options import AsJson
from samestep.cluster.ledger import Ledger
from samestep.cluster.looking import Seen, cancel, look
from samestep.report import console as show
from samestep.report.jobs_table import EVERY_S, follow_jobs, show_jobs


@app.command()
def jobs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What --out of submit was given.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Look on until all are over; Ctrl-C leaves them running.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.5, help="Seconds between two looks, with --follow.")
    ] = EVERY_S,
    is_cancelled: Annotated[bool, typer.Option("--cancel", help="End all that are not over.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the jobs of a folder: their states, how long they waited and ran, and why they ended."""
    ledger = Ledger.of(folder)
    seen: Sequence[Seen] = look(ledger)
    if is_cancelled:
        names = cancel(ledger, seen)
        show.talk().print(f"cancelled: {', '.join(names)}" if names else "nothing to cancel: all are over")
        seen = look(ledger)
    if follow:
        seen = follow_or_leave(ledger, every)
    tell(seen, as_json=as_json, folder=folder, is_asked_for=is_cancelled)


def command_for(folder: Path) -> str:
    """The command that shows the jobs of a folder, as a shell reads it."""
    return shlex.join(["samestep", "jobs", str(folder)])


def follow_or_leave(ledger: Ledger, every_s: float) -> Sequence[Seen]:
    """Look on until all jobs are over; after Ctrl-C they go on without anybody looking."""
    try:
        return follow_jobs(lambda: look(ledger), every_s)
    except KeyboardInterrupt:
        show.talk().print(f"the jobs go on; see them with: {command_for(ledger.folder)}", markup=False)
        raise typer.Exit(130) from None


def tell(seen: Sequence[Seen], *, as_json: bool, folder: Path, is_asked_for: bool = False) -> NoReturn:
    """Print how jobs stand; the exit code is 1 if any is over that did not end well, unless asked for."""
    if as_json:
        show.answer({"jobs": [job.to_json() for job in seen], "out": str(folder)})
    else:
        show_jobs(seen)
    is_bad = any(job.sight.is_over and (job.sight.state != "finished" or job.ending) for job in seen)
    raise typer.Exit(int(is_bad and not is_asked_for))
