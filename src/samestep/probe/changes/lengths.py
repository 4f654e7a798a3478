"""Lengths: what loaders say of their length, where batches are given to them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import DataLoader

from samestep.probe.origins import Origins
from samestep.probe.replacing import Replacements


class Lengths:
    """Lets a loader that was made at a given line say a given number of batches.

    Schedules are made from the length of a loader before it is iterated over, when only its line is known.
    """

    def __init__(self, origins: Origins, lengths: Mapping[str, int]) -> None:
        self._origins = origins
        self._lengths = lengths
        self._replaced = Replacements()

    def install(self) -> None:
        self._replaced.wrap(DataLoader, "__len__", self._around)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def length(loader: Any) -> int:
            given = self._lengths.get(self._origins.of(loader))
            return int(original(loader)) if given is None else given

        return length
