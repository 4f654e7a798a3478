"""Origins: which line of the program made a loader."""

import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from samestep.probe.callers import where_and_through
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

MOST_FUNCTIONS = 12


class Origins:
    """Knows the lines of all DataLoaders from the moment they are made.

    Accelerate and Lightning make a loader of their own from each that they are given: it has the line of that
    one, which is among the variables of the functions that make the other.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._lines: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        self._replaced.wrap(DataLoader, "__init__", self._around_init)

    def uninstall(self) -> None:
        self._replaced.undo()

    def of(self, loader: Any) -> str:
        """The line that made a loader, or nothing."""
        return self._lines.get(loader, "")

    def _around_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if self._watch.is_awake:
                with self._watch.looking("the making of a loader"):
                    line, through = where_and_through()
                    self._lines[loader] = self._line_of_source(loader, through) or line

        return init

    def _line_of_source(self, loader: Any, through: list[FrameType]) -> str:
        for frame in through[:MOST_FUNCTIONS]:
            for value in frame.f_locals.values():
                # `isinstance` would ask objects that only pose as loaders
                is_other = issubclass(type(value), DataLoader) and value is not loader
                if is_other and value.dataset is loader.dataset and value in self._lines:
                    return self._lines[value]
        return ""
