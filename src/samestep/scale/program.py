"""Program: the text of what is measured: its digest, so that a sweep does not go on with another program,
and which libraries it loads, so that ranks can be forked from a process that has them.

Knows the one file that is named. What that file imports may change unseen.
"""

import ast
import hashlib
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

_FILES = (".py", ".yaml", ".yml")


_LIBRARIES = (
    *("accelerate", "datasets", "lightning", "numpy", "pandas", "PIL", "pytorch_lightning", "scipy"),
    *("sklearn", "timm", "tokenizers", "torchaudio", "torchmetrics", "torchvision", "transformers"),
)
"""Slow to load, and known to start no thread and to touch no device when they are."""


def digest_of(target: str, script: Sequence[str] = ()) -> str | None:
    """The digest of the file of a target or script; None where it cannot be found without running it."""
    text = _text_of(target, script)
    return None if text is None else hashlib.blake2b(text, digest_size=16).hexdigest()


def libraries_of(target: str, script: Sequence[str] = ()) -> list[str]:
    """Modules of well-known libraries that the file imports somewhere; none of a file that is not Python."""
    try:
        tree = ast.parse(_text_of(target, script) or b"")
    except (SyntaxError, ValueError):
        return []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return sorted(name for name in found if name.partition(".")[0] in _LIBRARIES)


def _text_of(target: str, script: Sequence[str]) -> bytes | None:
    if script:
        path = _file_of_module(script[1]) if script[0] == "-m" else Path(script[0])
    elif Path(target).suffix in _FILES:
        path = Path(target)
    else:
        place = target.rpartition(":")[0]
        path = Path(place) if Path(place).suffix in _FILES else _file_of_module(place)
    try:
        return None if path is None else path.read_bytes()
    except OSError:
        return None


def _file_of_module(name: str) -> Path | None:
    """Where a module is, found without running the packages that it is in."""
    where: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, where)
        if spec is None:
            return None
        where = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin is not None else None
