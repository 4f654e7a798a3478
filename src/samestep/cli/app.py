"""The command line's own object, how it is entered, and what becomes of a refusal."""

import sys
from collections.abc import Callable
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from samestep import __version__
from samestep.errors import SamestepError
from samestep.report import console as show

_ORDER = (
    "train",
    "evaluate",
    "predict",
    "verify",
    "watch",
    "scale",
    "advise",
    "submit",
    "jobs",
    "report",
    "doctor",
    "demo",
)


class _InOrder(TyperGroup):
    """Lists commands in the order in which people need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    name="samestep",
    cls=_InOrder,
    help="Train on any number of GPUs. Take the same step. Know whether it pays.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"samestep {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what Samestep refuses becomes one sentence and exit code 2."""
    _guarded(lambda: app())


def _guarded(call: Callable[[], Any]) -> None:
    try:
        call()
    except SamestepError as error:
        show.show_error(show.talk(), str(error))
        if "--json" in takewhile(lambda word: word != "--", sys.argv[1:]):
            show.answer(error.to_json())
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
