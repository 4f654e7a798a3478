"""`samestep doctor`."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from samestep.cli.app import app
from samestep.cli.equivalence import differences
from samestep.cli.options import AsJson
from samestep.doctor.examination import COME_S, attend, examine
from samestep.errors import LaunchError
from samestep.launch.machine import count_gpus, free_port
from samestep.launcher import Seat, seat_in
from samestep.report import console as show
from samestep.report.doctor_table import show_diagnosis


@app.command()
def doctor(
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            "-g",
            min=1,
            help="Ranks on all machines together, one a GPU.",
            show_default="all GPUs here, or 2 CPU ranks; in a job one a process",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="A folder that all machines should share; the answer is kept there."
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=1.0, help="Seconds until a process that has not come is missing.")
    ] = COME_S,
    train: Annotated[
        bool,
        typer.Option(help="On one machine: train the demo on one rank and on all, and compare the two."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """See whether this machine, or all machines of a job, are fit for ranks; name what is wrong."""
    seat = seat_in(os.environ)
    console = show.talk()
    is_alone = seat is None
    if seat is None:
        seat = Seat.alone(free_port())
        ranks = gpus or count_gpus() or 2
    else:
        ranks = _ranks_of(seat, gpus)
    if not seat.is_first:
        if (reason := attend(seat, ranks=ranks, come_s=wait)) is not None:
            show.show_error(console, reason)
            raise typer.Exit(1)
        return
    if seat.count > 1:
        console.print(f"{seat}: waiting for the others at {seat.address}")
    found = examine(seat, ranks=ranks, out=out, come_s=wait)
    if is_alone and train and found.is_fine and ranks > 1:
        with TemporaryDirectory(prefix="samestep-doctor-") as folder:
            found.findings += differences(ranks, Path(folder))
        found.has_trained = True
    if out is not None:
        found.write(out)
    if as_json:
        show.answer(found.to_json())
    else:
        show_diagnosis(found)
    raise typer.Exit(0 if found.is_fine else 1)


def _ranks_of(seat: Seat, gpus: int | None) -> int:
    """The ranks of each process that a launcher started."""
    ranks = gpus or seat.num_ranks or seat.count
    if ranks % seat.count:
        raise LaunchError(
            f"{ranks} ranks were asked for, and {seat.launcher} started {seat.count} processes, which "
            f"cannot have equally many: ask for a multiple of {seat.count} with --gpus."
        )
    return ranks // seat.count
