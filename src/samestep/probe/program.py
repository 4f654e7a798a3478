"""Program: a script or module run as `python` would run it, and its exceptions shown as Python shows them.

Unlike `runpy`, it leaves the program's module in place as `__main__` until the process ends: threads, exit
handlers, pickled classes and spawned workers look for it there.
"""

import builtins
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from samestep.errors import ConfigError

OURS = str(Path(__file__).parent)
"""Where the files of the probe are, whose frames are not shown."""


def prepared(program: list[str]) -> Callable[[], None]:
    """What runs a script or module as the main one; `sys.argv` and `sys.path` are set as Python sets them."""
    main_module = ModuleType("__main__")
    main_module.__dict__["__builtins__"] = builtins
    if program[0] == "-m":
        sys.argv = program[1:]
        return lambda: _run_module(program[1], main_module)
    path = Path(program[0])
    if not path.is_file():
        raise ConfigError(
            f"{program[0]} was to be run, but there is no such file; name a script or -m MODULE."
        )
    sys.argv = list(program)
    if not sys.flags.safe_path:
        sys.path[0] = str(path.resolve().parent)
    main_module.__file__ = str(path.absolute())
    main_module.__loader__ = SourceFileLoader("__main__", main_module.__file__)
    vars(main_module).update(__cached__=None, __annotations__={})
    return lambda: _run_script(path, main_module)


def _run_script(path: Path, main_module: ModuleType) -> None:
    sys.modules["__main__"] = main_module
    # bytes, so that a declared encoding is heeded
    code = compile(path.read_bytes(), str(path.absolute()), "exec", dont_inherit=True)
    exec(code, main_module.__dict__)  # noqa: S102 (it is what the user asked for)


def _run_module(name: str, main_module: ModuleType) -> None:
    spec = _found(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _found(f"{name}.__main__")
    code = getattr(spec.loader, "get_code", lambda _: None)(spec.name) if spec is not None else None
    if spec is None or code is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    main_module.__spec__ = spec
    main_module.__loader__ = spec.loader
    main_module.__package__ = spec.parent
    main_module.__file__ = spec.origin
    main_module.__dict__["__cached__"] = spec.cached
    sys.argv[0] = spec.origin or name
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)  # noqa: S102 (it is what the user asked for)


def _found(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def show_without_us() -> None:
    """Let the exception that is on its way be shown as if the program had been run by Python itself."""
    shown_by = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        seen: set[int] = set()
        one: BaseException | None = error
        while one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = without_us(one.__traceback__)
            one = one.__cause__ or one.__context__
        shown_by(kind, error, error.__traceback__)

    sys.excepthook = show


def without_us(trace: TracebackType | None) -> TracebackType | None:
    """A traceback with the frames of the probe taken out, those of its wrappers included."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    as_module = sys.modules["__main__"].__spec__ is not None
    kept = None
    for frame in reversed(frames):
        name = frame.tb_frame.f_code.co_filename
        # Python itself shows how it came to a module, but nothing before the first line of a script
        if not name.startswith(OURS) and (as_module or name != "<frozen runpy>"):
            frame.tb_next = kept
            kept = frame
    return kept
