"""`samestep demo`."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from samestep.cli.app import app
from samestep.cli.options import AsJson, Out
from samestep.cli.running import finish, run
from samestep.errors import ConfigError
from samestep.launch.folder import default_folder
from samestep.launch.job import Job
from samestep.launch.limits import Limits
from samestep.record import Record
from samestep.report import console as show
from samestep.report.compare import Comparison, compare


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
        outcome = run(job, Limits(most=size), folder, say_device=size == sizes[0])
        if outcome.status != "finished":
            finish(outcome, as_json=as_json, title="training")
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
