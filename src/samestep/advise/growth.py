"""Growth: how the overhead of a job goes on from its largest worlds, by how long it is in seconds.

An overhead of seconds is mostly the volume of what is exchanged, and a ring moves as much whatever the number
of its members. One of milliseconds is mostly waiting for others, and more of them make it longer. So with c
the computing of a step (that of the smallest world) and o = T − c the overhead of the largest one, which has
g GPUs in each of k nodes,

    T(g', k') = c + o · (g'/g)^i · (k'/k)^n,   i, n = max(0, usual − by_size · log10(o / 0.1 s))

each with numbers of its own. These are learnt from public tables (`learning`): sources that have nothing in
common agree about those of nodes. Of links that no cell has it knows nothing: out of the first node, it only
goes on.

Worlds of several nodes wander by more than their trend. So o is a mean over the cells of the largest one's
tier, each taken to the place of the largest, and each counting half as much as the next larger one.
"""

from dataclasses import dataclass

import numpy as np

from samestep.advise.places import Floats, Places

_UNIT_S = 0.1
_USUAL_S = 0.06
"""The overhead of the public series in the middle: where nobody knows how many seconds there are."""
_SEEN_S = (0.003, 3.0)
"""What public series have: below and above, nothing more is known."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The power of a number of GPUs or nodes with which an overhead grows."""

    usual: float
    """That of 0.1 s."""
    by_size: float
    """One ten times as long has so much less."""

    def of(self, size_s: Floats) -> Floats:
        tens = np.log10(np.clip(size_s, *_SEEN_S) / _UNIT_S)
        return np.maximum(self.usual - self.by_size * tens, 0.0)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Rates within a node, by its GPUs in use, and between nodes."""

    inside: Rate
    nodes: Rate

    def step_s(self, places: Places, step_s: Floats, at: Places, *, is_in_seconds: bool = True) -> Floats:
        """Steps at other places, from cells in order of GPUs; all in one unit, which may not be seconds.

        Leading axes are those of many jobs.
        """
        per_example = step_s[..., :1] / places.batch_per_gpu[..., :1]
        overhead = np.maximum(step_s - per_example * places.batch_per_gpu, 0.0)
        largest = places[..., -1:]
        size_s = overhead[..., -1:] if is_in_seconds else np.full_like(overhead[..., -1:], _USUAL_S)
        there = overhead / self._factor(places, largest, size_s)
        is_alike = (places.nodes > 1) == (largest.nodes > 1)
        is_alike[..., 0] = False  # its overhead is 0 by definition
        num_larger = np.cumsum(is_alike[..., ::-1], axis=-1)[..., ::-1]
        weights = np.where(is_alike, 0.5**num_larger, 0.0)
        mean = np.sum(weights * there, axis=-1, keepdims=True) / weights.sum(axis=-1, keepdims=True)
        return np.asarray(per_example * at.batch_per_gpu + mean * self._factor(at, largest, size_s))

    def _factor(self, at: Places, largest: Places, size_s: Floats) -> Floats:
        """Overhead over that of the largest world."""
        inside = (at.gpus_per_node / largest.gpus_per_node) ** self.inside.of(size_s)
        return np.asarray(inside * (at.nodes / largest.nodes) ** self.nodes.of(size_s))
