"""`samestep advise`: how many GPUs to ask for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samestep.cli.app import app
from samestep.cli.options import AsJson
from samestep.errors import ConfigError, RecordError
from samestep.report import console as show

if TYPE_CHECKING:
    from samestep.advise.length import Length
    from samestep.advise.waits import Waits

HOUR = 50.0
MOST_STEPS, MOST_ALONE_S, MOST_MONEY = 1e12, 100 * 365.25 * 86400, 1e12
"""What is above is a slip, and its times could not be told."""
LEAST_TO = 8
_FARTHER = 4
"""Times the most GPUs that were measured, up to which is asked if nobody says how far."""


@app.command()
def advise(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DIR | table.csv", help="What `samestep scale --out` was given, or a table."),
    ],
    to: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs at most.", show_default="4 times those that were measured"),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="1=2m,4=1h..5h",
            help="Waits in the queue by GPUs, as one figure or median..90 %; or slurm, slurm:PARTITION, "
            "htcondor: ask the scheduler.",
            show_default="those of the jobs in DIR, if there are any",
        ),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0.0, help="Of a GPU-hour.")] = None,
    hour: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            help="What an hour until the result is worth, in the money of --price.",
            show_default=f"{HOUR:g}",
        ),
    ] = None,
    steps: Annotated[
        float | None, typer.Option(min=1, help="Of the run, at the batch of the fewest GPUs.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(min=1e-9, help="Of the run.")] = None,
    alone: Annotated[
        str | None, typer.Option(metavar="TIME", help="What training takes on the fewest GPUs, as in 10h.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC", help="Simulate it on other machines: a YAML file, or a name such as dgx-a100."
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(metavar="25.6M", help="Of the model, for --cluster.", show_default="as seen in DIR"),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            min=1, help="That a node has, used or not.", show_default="as seen in DIR or the table, else 8"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how many GPUs to ask for: speed on more of them, what the batch costs, the queue and the price.

    A table is a CSV with the columns gpus, batch_per_gpu, and step_s, step_ms or examples_per_s; nodes if
    there are several.
    """
    from samestep.advise.advice import Question
    from samestep.advise.advice import advise as advice_of
    from samestep.advise.cells import MOST_GPUS, checked
    from samestep.advise.cluster import read_cluster
    from samestep.advise.context import read_context
    from samestep.advise.hardware import FLOAT_BYTES, gradient_bytes_in, on_cluster, parameters_of
    from samestep.advise.nodes import node_of
    from samestep.advise.reading import read
    from samestep.advise.reason import Price
    from samestep.report.advised import Advised
    from samestep.report.advising import show_advice

    for name, value, needs, is_there in (
        ("--parameters", parameters, "--cluster", cluster is not None),
        ("--hour", hour, "--price", price is not None),
    ):
        if value is not None and not is_there:
            raise ConfigError(
                f"{name} is {value}, but counts with {needs} only: give that too, or leave it out."
            )
    for name, value in (("--price", price), ("--hour", hour)):
        if value is not None and not value <= MOST_MONEY:
            raise ConfigError(f"{name} is {value:g}; give {MOST_MONEY:g} at most.")
    if to is not None and to > MOST_GPUS:
        raise ConfigError(f"--to is {to}, but up to {MOST_GPUS} GPUs can be judged.")
    length = _length(steps, epochs, alone)
    spec = read_cluster(cluster) if cluster is not None else None
    num_bytes = None if parameters is None else FLOAT_BYTES * parameters_of(parameters)
    found = [path for each in paths for path in _swept(each)]
    folders = [path for path in found if path.is_dir()]
    cells = read(found)
    measured = sorted({cell.gpus for cell in checked(cells, node_of(cells, gpus_per_node))})
    question = Question(
        worlds=worlds_to(_as_far_as_usual(measured[-1]) if to is None else to, measured),
        length=length,
        waits=_waits(wait, [*paths, *folders]),
        price=None if price is None else Price(gpu_hour=price, hour=HOUR if hour is None else hour),
        gpus_per_node=gpus_per_node,
    )
    context = read_context(folders)
    advice = advice_of(cells, context, question)
    simulated = None
    if spec is not None:
        if not advice.is_step_known:
            raise ConfigError(
                "--cluster was given, but how many examples a step has is not known, and so is no time of a "
                "step: add batch_per_gpu or batch_size to the table, or leave --cluster out."
            )
        gradients = gradient_bytes_in(folders) if num_bytes is None else num_bytes
        simulated = on_cluster(spec, advice.offers, context, gradients)
    answer = advice.to_json() | ({} if simulated is None else {"cluster": simulated.to_json()})
    console = show.talk()
    kept = _keep(answer, paths)
    if as_json:
        show.answer(answer)
        return
    show_advice(console, Advised.model_validate(answer))
    if kept is not None:
        console.print(f"kept in {kept}; as a page: samestep report {kept.parent}", style="dim", markup=False)
    typer.echo(advice.recommended_gpus)


def _swept(path: Path) -> list[Path]:
    """A table, a sweep, or the sweeps in a folder of jobs."""
    from samestep.advise.context import FILE

    if not path.exists():
        raise RecordError(
            f"{path} was to be judged, but there is no such folder or table; name a folder that "
            "`samestep scale --out` was given, or a CSV with gpus, batch_per_gpu and step_s."
        )
    if path.is_file() or (path / FILE).exists():
        return [path]
    return sorted(each.parent for each in path.glob(f"*/{FILE}")) or [path]


def _keep(answer: dict[str, Any], paths: Sequence[Path]) -> Path | None:
    """Write the advice into the folder that it is about, for its page; not where that is not allowed."""
    from samestep.advise.advice import FILE
    from samestep.advise.context import FILE as SWEEP
    from samestep.advise.context import cells_digest
    from samestep.record import write_json

    if len(paths) != 1 or not (paths[0] / SWEEP).exists():
        return None
    try:
        write_json(paths[0] / FILE, answer | {"cells_digest": cells_digest(paths[0])})
    except OSError:
        return None
    return paths[0] / FILE


def _as_far_as_usual(most: int) -> int:
    from samestep.advise.cells import MOST_GPUS

    return min(max(_FARTHER * most, LEAST_TO), MOST_GPUS)


def worlds_to(most: int, measured: Sequence[int]) -> list[int]:
    """Numbers of GPUs to tell about: what was measured, powers of two and one between two of them."""
    powers = [2**k for k in range(most.bit_length())]
    between = [3 * 2**k for k in range(most.bit_length())]
    return sorted({*(n for n in (*powers, *between, most) if n <= most), *(n for n in measured if n <= most)})


def _length(steps: float | None, epochs: float | None, alone: str | None) -> "Length":
    from samestep.advise.length import Length
    from samestep.advise.waits import seconds_of

    if sum(value is not None for value in (steps, epochs, alone)) > 1:
        raise ConfigError(
            "The run's length was given in two ways; keep one of --steps, --epochs and --alone."
        )
    for name, value in (("--steps", steps), ("--epochs", epochs)):
        if value is not None and not value <= MOST_STEPS:
            raise ConfigError(f"{name} is {value:g}, which nobody trains for: give {MOST_STEPS:g} at most.")
    alone_s = None if alone is None else seconds_of(alone)
    if alone is not None and not alone_s:
        raise ConfigError(f"--alone is {alone!r}; give a time with a unit, as in 45m, 10h or 3d.")
    if alone_s is not None and alone_s > MOST_ALONE_S:
        raise ConfigError(f"--alone is {alone!r}, but nobody waits for more than a hundred years.")
    return Length(num_steps=steps, num_epochs=epochs, alone_s=alone_s)


def _waits(text: str | None, folders: Sequence[Path]) -> "Waits":
    """From what the user says, from a scheduler, or from jobs that were submitted for these folders."""
    from samestep.advise.queue import read_waits
    from samestep.advise.waits import Waits, count_waits, parse_waits

    if text is not None:
        return read_waits(text) or parse_waits(text)
    jobs = [job for folder in dict.fromkeys(folders) for job in _jobs_of(folder)]
    if jobs:
        return count_waits(jobs, source="known from jobs submitted here")
    return Waits(remarks=("No waits are given: the queue counts as empty. Say them with --wait.",))


def _jobs_of(folder: Path) -> list[tuple[int, float]]:
    """GPUs and wait of each job that was submitted for a folder and has started."""
    from samestep.cluster.ledger import FILE, Ledger

    if not (folder / FILE).is_file():
        return []
    ledger = Ledger.of(folder)
    found = []
    for entry in ledger.entries:
        sight = ledger.last_sight(entry)
        if sight is not None and sight.wait_s is not None and sight.state != "pending":
            found.append((ledger.request_of(entry).needs.world_size, sight.wait_s))
    return found
