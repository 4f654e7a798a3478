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
        Path | None, typer.Option("--out", "-o", help="The page.  [default: report.html in DIR]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make one HTML page of a verdict or a run; it opens from disk and needs no network."""
    from samestep.report.page import page_of

    page = page_of(folder)
    path = folder / "report.html" if out is None else out
    num_bytes = page.write(path)
    if as_json:
        show.answer({"out": str(path), "bytes": num_bytes, "sections": page.sections})
    else:
        typer.echo(path)
