"""Places: where ranks run and how many examples each has, as arrays; what laws are functions of.

Knows no times' origin and no law.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Places:
    """World sizes with their nodes and examples per GPU, all of one length; ranks are spread evenly."""

    gpus: Floats
    nodes: Floats
    batch_per_gpu: Floats

    @classmethod
    def of(
        cls, gpus: ArrayLike, nodes: ArrayLike | None = None, batch_per_gpu: ArrayLike | None = None
    ) -> "Places":
        """One node and one example a GPU where nothing else is said."""
        counts = np.atleast_1d(np.asarray(gpus, dtype=np.float64))
        ones = np.ones_like(counts)
        return cls(
            counts,
            ones if nodes is None else ones * np.asarray(nodes, dtype=np.float64),
            ones if batch_per_gpu is None else ones * np.asarray(batch_per_gpu, dtype=np.float64),
        )

    def __len__(self) -> int:
        return len(self.gpus)

    def __getitem__(self, chosen: slice | Sequence[int] | NDArray[np.intp]) -> "Places":
        return Places(self.gpus[chosen], self.nodes[chosen], self.batch_per_gpu[chosen])

    def __add__(self, other: "Places") -> "Places":
        return Places(
            np.concatenate([self.gpus, other.gpus]),
            np.concatenate([self.nodes, other.nodes]),
            np.concatenate([self.batch_per_gpu, other.batch_per_gpu]),
        )

    @property
    def gpus_per_node(self) -> Floats:
        return self.gpus / self.nodes

    @property
    def is_batch_fixed(self) -> bool:
        """Whether every GPU has the same number of examples in all of them."""
        return bool(np.ptp(self.batch_per_gpu) <= 1e-9 * self.batch_per_gpu.max())
