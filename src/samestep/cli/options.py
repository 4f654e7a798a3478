"""Options and arguments that several commands have."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from samestep.launch.job import Mode
from samestep.launch.limits import Limits

Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus", "-g", min=1, help="Ranks, one a GPU; CPU ranks where there is no GPU.", show_default="1"
    ),
]


def _limits(text: str) -> Limits:
    try:
        return Limits.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


GpuLimits = Annotated[
    Limits | None,
    typer.Option(
        "--gpus",
        "-g",
        parser=_limits,
        metavar="N | MIN:MAX",
        help="Ranks, one a GPU; CPU ranks where there is no GPU. With MIN:MAX the run goes on without ranks "
        "that die, while MIN are left.",
        show_default="1",
    ),
]


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="Change a setting of the task; can be repeated."),
]


ModeOption = Annotated[
    Mode | None,
    typer.Option("--mode", help="bitwise: the same bits on any number of ranks.", show_default="fast"),
]
Shards = Annotated[
    int | None, typer.Option(min=1, help="Shards of a global batch, for bitwise.", show_default="8")
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="The run's folder.", show_default="below runs/")
]


Threads = Annotated[int | None, typer.Option(min=1, help="Threads a rank.", show_default="cores / ranks")]


Port = Annotated[
    int | None, typer.Option(help="Where the ranks meet on this machine.", show_default="a free one")
]


Timeout = Annotated[float | None, typer.Option(min=1.0, help="Seconds that ranks wait for one another.")]


AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")]


Checkpoint = Annotated[
    Path, typer.Option("--checkpoint", "-c", help="A checkpoint, a run (its newest one), or RUN/best.")
]


Data = Annotated[Literal["train", "valid", "test"], typer.Option(help="Which data set of the task.")]


Every = Annotated[int, typer.Option(min=1, help="Of a run that is watched: steps between two looks.")]


Target = Annotated[str, typer.Argument(help="file.py, file.py:name, package.module:name or config.yaml")]
