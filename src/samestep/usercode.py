"""Bring in what the user wrote: import a file or a dotted name, and say where it failed if it did.

Knows Python's imports. Knows nothing of tasks, YAML or torch.
"""

import contextlib
import difflib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from samestep.errors import SamestepError

T = TypeVar("T")
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parent),
    "<",  # frozen importlib, and code that dataclasses make
)
_loaded: set[str] = set()
_depth = 0  # of imports under way


class CannotImport(Exception):
    """What was asked for is not there or failed; the message is a sentence for the user."""


class NotThere(CannotImport):
    """The module itself, or a package above it, does not exist."""


def is_importing() -> bool:
    """Whether code of the user's runs now only because it is imported."""
    return _depth > 0


def nearest(word: str, words: Iterable[str]) -> str:
    """`; did you mean …?` where a known word is like this one, else nothing."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


def put_first(folder: Path) -> None:
    """Let imports look into `folder` before anywhere else, as `python file.py` does."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def import_file(path: Path) -> ModuleType:
    """The module of a file, under the file's own name, so that loader processes can import it again."""
    path, name = path.resolve(), path.stem
    present = sys.modules.get(name)
    if present is not None and name not in _loaded and _file_of(present) != path:
        raise CannotImport(
            f"{path.name} has the name of the module `{name}`, which is in use already "
            f"({_file_of(present) or 'built in'}): rename the file."
        )
    if "." in name:
        raise CannotImport(f"{path.name} cannot be imported: rename it to have no dot but the one of `.py`.")
    put_first(path.parent)
    if present is not None and _file_of(present) == path:
        return present
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        _explaining(lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[name]
        raise
    _loaded.add(name)
    return module


def import_module(name: str) -> ModuleType:
    """The module of a dotted name; `CannotImport` if it is not there or fails while it is imported."""
    try:
        return _explaining(lambda: importlib.import_module(name))
    except CannotImport as error:
        cause = error.__cause__
        # only this very module, or a package above it, is the user's typo; another one is missing inside it
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            inside = "" if cause.name == name else f": `{cause.name}` was not found"
            raise NotThere(f"there is no module `{name}`{inside}") from cause
        raise


def find(name: str) -> Any:
    """The object that a dotted name such as `package.module.Name` stands for."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise CannotImport(f"`{name}` is not of the form `package.module.Name`")
    found: Any = import_module(parts[0])
    for index, part in enumerate(parts[1:], start=1):
        here = ".".join(parts[:index])
        if not hasattr(found, part) and isinstance(found, ModuleType) and index < len(parts) - 1:
            with contextlib.suppress(NotThere):
                import_module(f"{here}.{part}")
        if not hasattr(found, part):
            kind = "module" if isinstance(found, ModuleType) else "class"
            raise CannotImport(f"the {kind} `{here}` has no `{part}`{nearest(part, dir(found))}")
        found = getattr(found, part)
    return found


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _explaining(call: Callable[[], T]) -> T:
    """Call what imports the user's code; its failure becomes one sentence with the user's own line."""
    global _depth
    _depth += 1
    try:
        return call()
    except SamestepError as error:
        raise type(error)(f"{_line_of(error)}: {error}") from error
    except SystemExit as error:
        raise CannotImport(
            f"{_line_of(error)}: the file ended the program while it was imported; put what runs a script "
            'under `if __name__ == "__main__":`.'
        ) from error
    except Exception as error:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise CannotImport(f"{_line_of(error)}: {type(error).__name__}: {text}".rstrip(": ")) from error
    finally:
        _depth -= 1


def _line_of(error: BaseException) -> str:
    """`file:line` of the innermost line that the user wrote."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}"
