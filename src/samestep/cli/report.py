"""`samestep report`."""

from pathlib import Path
from typing import Annotated

import typer

from samestep.cli.app import app
from samestep.cli.options import AsJson
from samestep.report import console as show


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What --out of another command was given.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page.", show_default="report.html in DIR")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The timeline of a sweep, for ui.perfetto.dev or chrome://tracing."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make one HTML page of a verdict, a sweep or a run; it opens from disk and needs no network."""
    from samestep.report.page import page_of
    from samestep.report.perfetto import write_trace

    page = page_of(folder)
    path = folder / "report.html" if out is None else out
    num_bytes = page.write(path)
    num_events = None if trace is None else write_trace(folder, trace)
    if as_json:
        answer = {"out": str(path), "bytes": num_bytes, "sections": page.sections}
        show.answer(answer if trace is None else answer | {"trace": str(trace), "events": num_events})
        return
    typer.echo(path)
    if trace is not None:
        typer.echo(trace)
