"""`samestep demo`: what the other commands do, one after the other, on a task that comes along."""

import contextlib
import io
import shlex
from datetime import datetime
from pathlib import Path
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

TARGET = "samestep.demo:digits"
SWEEP_S = 20


@app.command()
def demo(
    gpus: Annotated[str, typer.Option("--gpus", "-g", help="Two world sizes: reference, candidate.")] = "1,2",
    quick: Annotated[
        bool, typer.Option("--quick", help="Only train and compare; measure no speed and make no page.")
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Go the whole way with a small real task: the same steps on two ranks? faster? worth it? And a page."""
    sizes = _sizes(gpus)
    base = out or default_folder(":demo", datetime.now())
    console = show.talk()
    trained = (f"samestep train {TARGET} --gpus {size}" for size in sizes)
    _announce(console, "Do they take the same steps?", *trained)
    records = []
    for size in sizes:
        folder = base / f"{size}-rank{'s' * (size > 1)}"
        job = Job(command="train", target=TARGET)
        outcome = run(job, Limits(most=size), folder, say_device=size == sizes[0])
        if outcome.status != "finished":
            finish(outcome, as_json=as_json, title="training")
        records.append(Record.read(folder))
    verdict = compare(records[0].steps(), records[1].steps())
    _tell_demo(console, sizes, records, verdict)
    answer: dict[str, Any] = {
        "verdict": verdict.verdict,
        "worlds": sizes,
        "steps": verdict.num_steps,
        "first_difference": verdict.first_difference or None,
        "out": str(base),
    }
    if not quick:
        answer |= _speed(console, sizes, verdict.num_steps, base / "scale")
    if as_json:
        show.answer(answer)
    else:
        typer.echo(verdict.verdict)
    raise typer.Exit(0 if verdict.verdict in ("same", "equal") else 1)


def _speed(console: Console, sizes: list[int], num_steps: int, folder: Path) -> dict[str, Any]:
    """What `scale`, `advise` and `report` say about the task, each by its own command."""
    worlds = ",".join(map(str, sorted({1, *sizes})))
    faster = _ask(
        console, "Are more ranks faster, and where does the time go?",
        "scale", TARGET, "--gpus", worlds, "--budget", f"{SWEEP_S}s", "--out", str(folder),
    )  # fmt: skip
    advised = _ask(console, "How many are worth it?", "advise", str(folder), "--steps", str(num_steps))
    page = _ask(console, "All of it on one page", "report", str(folder))
    console.print(f"\nopen {page} in a browser", markup=False)
    return {"faster": faster, "recommended_gpus": int(advised), "report": page}


def _ask(console: Console, question: str, *words: str) -> str:
    """What another command answers on standard output; what it says beside that is shown."""
    _announce(console, question, shlex.join(["samestep", *words]))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = app(list(words), standalone_mode=False)
    if code == 130:  # by the user; "not faster" and "cannot be told" are answers
        raise typer.Exit(code)
    return said.getvalue().strip()


def _announce(console: Console, question: str, *commands: str) -> None:
    console.print(f"\n{question}", style="bold", markup=False)
    for command in commands:
        console.print(f"$ {command}", style="dim", markup=False)


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
