"""Replacing: puts thin wrappers around functions of others, and takes them away again."""

import functools
from collections.abc import Callable
from typing import Any

_PASSED_OVER = "importlib._bootstrap"
"""In the name of a file, this keeps `warnings` from counting its frames: warnings name the program's line."""

_NOTHING = object()


class Replacements:
    """Attributes that were replaced, and what they were; the last replaced is the first put back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def wrap(
        self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]], *others: Any
    ) -> None:
        """Replace a function that `owner` itself holds, and `others` too, by what `make` makes of it."""
        before = vars(owner)[name]
        wrapper = _wrapped(before, make)
        for holder in (owner, *others):
            if vars(holder).get(name) is before:
                self.put(holder, name, wrapper)

    def cover(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Give a class a function of its own, made of the one that it has from a class above."""
        wrapper = _wrapped(getattr(owner, name), make)
        self._before.append((owner, name, _NOTHING))
        setattr(owner, name, wrapper)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute that `owner` itself holds."""
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put back what was there."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _wrapped(before: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    wrapper: Any = functools.wraps(before)(make(before))
    code = wrapper.__code__
    wrapper.__code__ = code.replace(co_filename=f"{code.co_filename} ({_PASSED_OVER})")
    # what TorchScript is to compile where a program calls this
    wrapper.__prepare_scriptable__ = lambda: before
    return wrapper
