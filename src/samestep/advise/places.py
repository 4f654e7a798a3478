"""Places: where ranks run and how many examples each has, as arrays; what laws are functions of.

Knows no times' origin and no law.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Chosen = slice | Sequence[int] | NDArray[np.intp] | tuple[EllipsisType, slice]


@dataclass(frozen=True)
class Places:
    """World sizes with their nodes and examples per GPU, all of one length; ranks are spread evenly."""

    gpus: Floats
    nodes: Floats
    batch_per_gpu: Floats
    """Of a step, over all turns."""
    turns: Floats
    """A step has so many: a GPU works on its examples in so many pieces, one after the other."""

    @classmethod
    def of(
        cls,
        gpus: ArrayLike,
        nodes: ArrayLike | None = None,
        batch_per_gpu: ArrayLike | None = None,
        turns: ArrayLike | None = None,
    ) -> "Places":
        """One node, one example a GPU and one turn where nothing else is said."""
        counts = np.atleast_1d(np.asarray(gpus, dtype=np.float64))
        ones = np.ones_like(counts)
        others = (nodes, batch_per_gpu, turns)
        return cls(counts, *(ones if each is None else ones * np.asarray(each) for each in others))

    @classmethod
    def stacked(cls, all_places: Sequence["Places"]) -> "Places":
        """Those of one length, with an axis before theirs."""
        columns = zip(*(each._columns for each in all_places), strict=True)
        return cls(*(np.stack(values) for values in columns))

    def __len__(self) -> int:
        return len(self.gpus)

    def __getitem__(self, chosen: Chosen) -> "Places":
        return Places(*(values[chosen] for values in self._columns))

    def __add__(self, other: "Places") -> "Places":
        return Places(*(np.concatenate(pair) for pair in zip(self._columns, other._columns, strict=True)))

    @property
    def _columns(self) -> tuple[Floats, ...]:
        return self.gpus, self.nodes, self.batch_per_gpu, self.turns

    @property
    def gpus_per_node(self) -> Floats:
        return self.gpus / self.nodes

    @property
    def is_batch_fixed(self) -> bool:
        """Whether every GPU has the same number of examples in all of them."""
        return _are_one(self.batch_per_gpu)

    @property
    def at_once(self) -> Floats:
        """Examples that a GPU has in a turn."""
        return self.batch_per_gpu / self.turns

    @property
    def is_at_once_fixed(self) -> bool:
        """Whether a turn has the same number of examples in all of them."""
        return _are_one(self.at_once)


def _are_one(values: Floats) -> bool:
    return bool(np.ptp(values) <= 1e-9 * values.max())
