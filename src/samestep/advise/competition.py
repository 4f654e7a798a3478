"""Competition: every law on the same cells, and one answer that is their weighted geometric mean.

Which laws count is a matter of where the question lies: within a node, between nodes, out of one node to
others that are large or small, or with another batch per GPU. These count alike, the others a little or not
at all; weights that were learnt did worse on sources that had not taught them. Each is then weighed by what
it was worth on these cells: the cells of the smaller worlds are made to forecast the larger ones (forward
chaining), and who missed counts less. Three cells say little about which law is right, so this factor is a
mild one. Five cells or more can prove one: who forecast all of them, from the third on, to the hundredth part
counts more than all the others together. Few jobs follow a law like that; those that do go on with it. Knows
no intervals.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from samestep.advise import laws
from samestep.advise.experience import Forecast, forecast
from samestep.advise.learnt import Learnt
from samestep.advise.places import Floats, Places

FEWEST = 2
"""Cells that a law can be fitted to."""
LARGE_NODE = 8
"""GPUs. Nodes of so many come with links to match, by all five public sources that have them; of smaller ones
there is one source, and its links are slow."""
FARTHEST = 4
"""Times the largest world measured, beyond which a projection is a range."""
EXPERIENCE, GROWTH = "experience", "growth"
NAMES = (EXPERIENCE, GROWTH, *(law.name for law in laws.ALL))

_OTHERS = 0.03
"""What a law counts for that is not named for a situation: its record may still lift it."""
_FLOOR = 0.05
"""Added to a law's mean miss: smaller ones do not tell laws apart, since cells themselves are that noisy."""
_POWER = 0.5
_PROVEN = 0.01
"""Of a cell's time: a law that never missed by more from `_FROM` cells on is proven by `_TO` of them."""
_FROM, _TO = 3, 5
_FOR_MOST = 5.0
"""Times what all others count for together."""

_LAST, _LOG = laws.LAST_EFFICIENCY.name, laws.LOGARITHMIC.name
_AMDAHL, _BANDWIDTH, _TIERS = laws.AMDAHL.name, laws.BANDWIDTH.name, laws.HIERARCHICAL.name
_UNIVERSAL, _POLLUX = laws.UNIVERSAL.name, laws.POLLUX.name


def _named(*names: str) -> Floats:
    """Equal weights for those, none for the others."""
    return np.array([float(name in names) / len(names) for name in NAMES])


def _led_by(*names: str) -> Floats:
    """Equal weights for those, a little for the others; none for linear speedup, which is no forecast."""
    a_little = [0.0 if name in (*names, laws.LINEAR_SPEEDUP.name) else _OTHERS for name in NAMES]
    return np.asarray(_named(*names) + a_little)


_INSIDE = _led_by(EXPERIENCE, _LAST, _LOG)
# two that know tiers, and one that loses with every node that comes, whatever is exchanged
_BETWEEN = _named(GROWTH, _TIERS, _LOG)
# nobody knows the links, but those of large nodes are mostly fast: from no more losses than before to a part
# that is not shared. Here and below no others, since a record within a node cannot lift them
_CROSSING = _named(EXPERIENCE, GROWTH, _LAST, _BANDWIDTH, _AMDAHL)
# only laws that lose with every GPU that comes, from little to more than is gained
_CROSSING_SMALL = _named(EXPERIENCE, _LOG, _AMDAHL, _UNIVERSAL)
# Amdahl's, and two that are Amdahl's where nothing else shows: ranks that disturb each other the more of them
# there are, and an exchange that hides behind the computing until its share gets too small
_STRONG = _led_by(EXPERIENCE, _AMDAHL, _UNIVERSAL, _POLLUX)
# no public series tells; by meaning, the law that knows tiers where some of several nodes were measured
_STRONG_BETWEEN = _led_by(EXPERIENCE, _AMDAHL, _UNIVERSAL, _POLLUX, _TIERS)
# only the experience knows that fewer turns are no smaller batch, and that a larger one has no more overhead;
# and laws are for larger worlds: below the largest that was measured, it alone goes through the cells
_ALONE = _named(EXPERIENCE)


@dataclass(frozen=True)
class Outlook:
    """The answer for several places, and what tells how far to trust it."""

    log_s: Floats
    """Natural logarithm of the step's time."""
    by_law: Floats
    """The same of each of `NAMES` (first axis)."""
    weights: Floats
    """Of each law (first axis), adding up to 1 for each place."""
    hull: tuple[Floats, Floats]
    """The least and the greatest answer of the laws that count where the question lies."""
    least_log_s: Floats
    """More GPUs with no more examples each do no more for each GPU than the most that were measured.

    -inf where that tells nothing."""
    scale: Floats
    """Of the experience's forecast."""
    doublings: Floats
    """From the largest world that was measured."""
    is_crossing: Floats
    """1 for several nodes where none of the cells had more than one."""
    is_to_small: Floats
    """1 for several nodes of few GPUs, where none of the cells had more than one node."""
    is_between: Floats
    """1 for several nodes where some of the cells had them."""
    standstill_log_s: Floats
    """The step if no more examples a second came through than in the largest world measured: a host that is
    full. -inf where it cannot happen, or where public series tell how often it does."""
    num_cells: int
    is_strong: bool

    @property
    def is_far(self) -> NDArray[np.bool_]:
        return np.asarray(self.doublings > np.log2(FARTHEST))

    @property
    def disagreement(self) -> Floats:
        """Standard deviation over the laws that count; that of the experience's own forecast where it alone
        counts."""
        spread = np.sqrt(np.sum(self.weights * (self.by_law - self.log_s) ** 2, axis=0))
        return np.where(self.weights.max(axis=0) == 1.0, self.scale, spread)


class Competition:
    """Cells in order of GPUs, and places that were not measured."""

    def __init__(
        self,
        places: Places,
        step_s: Floats,
        at: Places | None = None,
        *,
        gpus_per_node: int | None = None,
        is_in_seconds: bool = True,
    ) -> None:
        """`gpus_per_node`: that a node has, used or not; if not said, the most of one in all places.

        `is_in_seconds`: whether `step_s` is, or in a unit that nobody knows.
        """
        assert len(places) >= FEWEST, "one cell has no law"
        self._places = places
        self._all = places if at is None else places + at
        self._step_s = step_s
        self._is_in_seconds = is_in_seconds
        self._has_large_nodes = (gpus_per_node or self._all.gpus_per_node.max()) >= LARGE_NODE

    def outlook(self, learnt: Learnt, num_cells: int | None = None) -> Outlook:
        """The answer from the first cells (all, if not said) for all places that come after."""
        count = len(self._places) if num_cells is None else num_cells
        cells, asked = self._places[:count], self._all[slice(count, None)]
        found = self._forecast(learnt, count)
        by_law = self._by_law(learnt, count, found)
        is_strong = not self._all.is_batch_fixed
        has_nodes = asked.nodes > 1
        is_crossing = has_nodes & (cells.nodes.max() == 1)
        # a fixed global batch: too few public series; the same ranks a node: the same load of its host
        is_open = is_strong & (asked.gpus_per_node > cells.gpus_per_node.max())
        growth = asked.gpus * asked.batch_per_gpu / (cells.gpus[-1] * cells.batch_per_gpu[-1])
        standstill = np.where(is_open, np.log(self._step_s[count - 1] * growth), -np.inf)
        crossing = _CROSSING if self._has_large_nodes else _CROSSING_SMALL
        by_tier = np.where(has_nodes, _BETWEEN[:, None], _INSIDE[:, None])
        by_tier = np.where(is_crossing, crossing[:, None], by_tier)
        is_by_turns = cells.is_at_once_fixed & np.isclose(asked.at_once, cells.at_once[-1], rtol=1e-9)
        by_share = np.where(has_nodes & ~is_crossing, _STRONG_BETWEEN[:, None], _STRONG[:, None])
        is_larger = asked.batch_per_gpu > cells.batch_per_gpu[-1] * (1 + 1e-9)
        by_batch = np.where(is_by_turns | is_larger, _ALONE[:, None], by_share)
        weights = np.where(is_strong, by_batch, by_tier)
        weights = np.where(asked.gpus < cells.gpus.max(), _ALONE[:, None], weights)
        counts_here = weights > _OTHERS
        weights = weights * np.where(is_crossing, 1.0, self._record(learnt, count)[:, None])
        weights = weights / weights.sum(axis=0)
        can_prove = ~is_crossing & (weights.max(axis=0) < 1.0)  # neither unknown links nor experience alone
        weights = weights + np.where(can_prove, _FOR_MOST * self._proof(learnt, count)[:, None], 0.0)
        weights = weights / weights.sum(axis=0)
        is_bound = (asked.gpus > cells.gpus.max()) & (asked.batch_per_gpu <= cells.batch_per_gpu[-1])
        least = np.where(is_bound, by_law[NAMES.index(_LAST)], -np.inf)
        return Outlook(
            log_s=np.maximum(np.sum(weights * by_law, axis=0), least),
            by_law=by_law,
            weights=weights,
            hull=(
                np.where(counts_here, by_law, np.inf).min(axis=0),
                np.where(counts_here, by_law, -np.inf).max(axis=0),
            ),
            least_log_s=least,
            scale=found.scale,
            doublings=np.maximum(np.log2(asked.gpus / cells.gpus.max()), 0.0),
            is_crossing=is_crossing.astype(float),
            is_to_small=(is_crossing & (not self._has_large_nodes)).astype(float),
            is_between=(has_nodes & ~is_crossing).astype(float),
            standstill_log_s=standstill,
            num_cells=count,
            is_strong=is_strong,
        )

    @cached_property
    def _by_laws(self) -> dict[int, Floats]:
        """Logarithms of seconds by law and later place, for each number of first cells."""
        found = {}
        for count in range(FEWEST, len(self._places) + 1):
            cells, asked = self._places[:count], self._all[slice(count, None)]
            curves = [law.fit(cells, self._step_s[:count]) for law in laws.ALL]
            found[count] = np.log(np.stack([curve(asked) for curve in curves]))
        return found

    def _by_law(self, learnt: Learnt, count: int, found: Forecast) -> Floats:
        """The same of all `NAMES`: first those that had to be learnt."""
        cells, asked = self._places[:count], self._all[slice(count, None)]
        step_s = learnt.growth.step_s(cells, self._step_s[:count], asked, is_in_seconds=self._is_in_seconds)
        return np.vstack([found.log_s, np.log(step_s), self._by_laws[count]])

    def _forecast(self, learnt: Learnt, count: int) -> Forecast:
        cells, asked = self._places[:count], self._all[slice(count, None)]
        return forecast(learnt.experience, cells, self._step_s[:count], asked)

    def _record(self, learnt: Learnt, count: int) -> Floats:
        """What each law was worth in forecasting the larger of the first cells from the smaller."""
        if count <= FEWEST:
            return np.ones(len(NAMES))
        return np.asarray((self._misses(learnt, FEWEST, count).mean(axis=1) + _FLOOR) ** -_POWER)

    def _proof(self, learnt: Learnt, count: int) -> Floats:
        """Near 1 for a law that never missed, 0 for others and where there are too few cells to tell."""
        if count < _TO:
            return np.zeros(len(NAMES))
        return np.asarray(np.exp(-((self._misses(learnt, _FROM, count).max(axis=1) / _PROVEN) ** 2)))

    def _misses(self, learnt: Learnt, fewest: int, count: int) -> Floats:
        """Of each law (first axis): every cell, forecast from the first `fewest`, from one more, …"""
        found = []
        for fewer in range(fewest, count):
            truth = np.log(self._step_s[fewer:count])
            by_law = self._by_law(learnt, fewer, self._forecast(learnt, fewer))
            found.append(np.abs(by_law[:, : count - fewer] - truth))
        return np.concatenate(found, axis=1)
