"""Callers: the line of the program from which something is done.

Knows which files are no part of the program: torch, installed packages, the standard library, and Samestep.
"""

import os
import site
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def _folder_of_the_program() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


_HERE = _folder_of_the_program()
"""Where the program was started; it may go elsewhere later."""


def begin_in(folder: str) -> None:
    """Take a folder for the one that the program was started in, if that is not where this was loaded."""
    global _HERE
    _HERE = folder
    _shown.cache_clear()


def where() -> str:
    """The innermost line of the program that is being run, "file:line"; empty if no line of it is."""
    return _found(sys._getframe(1))[0]


def where_and_through() -> tuple[str, list[FrameType]]:
    """That line, and the functions of libraries, from the innermost, through which it made the call."""
    return _found(sys._getframe(1))


def is_of_program(frame: FrameType) -> bool:
    """Whether it is a line of the program that runs in the frame."""
    return _shown(frame.f_code.co_filename) is not None


def _found(frame: FrameType | None) -> tuple[str, list[FrameType]]:
    through: list[FrameType] = []
    while frame is not None:
        name = frame.f_code.co_filename
        shown = _shown(name)
        if shown is not None:
            return f"{shown}:{frame.f_lineno}", through
        if not name.startswith(_OURS):
            through.append(frame)
        frame = frame.f_back
    return "", through


_OURS = f"{Path(__file__).parents[1]}{os.sep}"


@cache
def _libraries() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    if torch_file is not None:
        paths.add(os.path.dirname(torch_file))  # noqa: PTH120 (a text among texts)
    both = {form for path in paths if path for form in (path, os.path.realpath(path))}
    return (_OURS, *(f"{path}{os.sep}" for path in sorted(both)))


@cache
def _shown(filename: str) -> str | None:
    """A file of the program, from the folder that it was started in if it is below; None for any other."""
    if filename.startswith(("<", *_libraries())) or any(part in filename for part in _INSTALLED):
        return None
    return filename.removeprefix(f"{_HERE}{os.sep}") if _HERE else filename
