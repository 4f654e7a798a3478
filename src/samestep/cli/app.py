"""The command line's own object, how it is entered, and what becomes of a refusal."""

import sys
from collections.abc import Callable
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from samestep import __version__
from samestep.errors import ConfigError, SamestepError
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


class _Commands(TyperGroup):
    """Lists commands in the order in which people need them; wrong words are refused like anything else."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Without the option parser's own box, which has no form for machines."""
        is_whole_program = extra.get("standalone_mode", True)
        extra["standalone_mode"] = False
        if not is_whole_program:
            return super().main(*args, **extra)
        try:
            code = super().main(*args, **extra)
        except typer.Abort:
            code = 1
        except Exception as error:
            # the parser's classes of errors have no public name; all of them can say themselves
            tell = getattr(error, "format_message", None)
            if tell is None:
                raise
            command = getattr(getattr(error, "ctx", None), "command_path", "samestep")
            said = tell().strip().rstrip(".")
            if not said:  # no command at all: help was shown
                sys.exit(2)
            raise ConfigError(f"{said}. See `{command} --help`.") from None
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="samestep",
    cls=_Commands,
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
