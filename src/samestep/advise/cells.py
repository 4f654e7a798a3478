"""Cells: what was measured, checked before anything is made of it. Knows no files and no laws."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from samestep.advise.nodes import Node, node_of
from samestep.advise.origins import check_one_origin
from samestep.advise.places import Floats, Places
from samestep.advise.words import gpus as told_gpus
from samestep.errors import ConfigError, listed

_OTHER_UNIT = 300.0
"""No factor above it is of GPUs alone."""
_REPEATS = 2.0
"""Times of one place that differ by more are not of the same work: public repeats differ by 0.08 at most."""
_STEP_S = (1e-9, 1e9)
"""No step is shorter than a turn of a clock, or longer than thirty years."""
MOST_AROUND = 10.0
"""No interval of a measured step reaches farther, as a factor."""
_DIGITS = 0.999
"""An end that is rounded may lie so close on the wrong side."""
MOST_GPUS = 65536


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The time of a step on a number of GPUs. Cells of other jobs or
    machines differ in `job` or `machine`; a machine is the models of its devices, each after its kind.
    """

    gpus: int
    step_s: float
    batch_per_gpu: float = 1.0
    is_batch_known: bool = True
    """Where it is not, it is the same in all cells, and counts as 1."""
    accumulate: int = 1
    """Turns a step: a GPU works on its examples in so many pieces, one after the other."""
    nodes: int | None = None
    """None where nobody said it: as many as its GPUs fill."""
    step_low_s: float | None = None
    step_high_s: float | None = None
    """Of an interval of 95 %."""
    speedup_around: tuple[float, float] | None = None
    """The same of the speedup over one GPU, as parts of it, where both were measured by turns."""
    cpu_utilisation: float | None = None
    """Of all cores of a node, by its ranks."""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """By name, what the step takes longer than the same share of one GPU's step."""
    job: str = ""
    machine: str = ""
    gpus_per_node: int | None = None
    """That a node of this machine has, used or not; None if nobody said it."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """What else may make its time another, by name."""
    is_in_seconds: bool = True
    """Not where only examples a second are known and no batch: then `step_s` is that of one example a GPU."""

    def __post_init__(self) -> None:
        for name in ("gpus", "nodes", "gpus_per_node", "accumulate"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not 1 <= value < math.inf or value != int(value):
                raise ConfigError(f"{name} is {value}, but must be a whole number of 1 or more")
        if self.gpus > MOST_GPUS:
            raise ConfigError(f"gpus is {self.gpus}, but at most {MOST_GPUS} can be judged")
        for name in ("step_s", "batch_per_gpu"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"{name} of {told_gpus(self.gpus)} is {value}, but must be above 0: mend "
                    "or leave out the cell"
                )
        self._check_interval()
        if self.cpu_utilisation is not None and not 0 <= self.cpu_utilisation <= 1:
            raise ConfigError(
                f"cpu_utilisation of {told_gpus(self.gpus)} is {self.cpu_utilisation}, but must be a part of "
                "all cores, from 0 to 1: 41 % are 0.41"
            )
        if not _STEP_S[0] <= self.step_s <= _STEP_S[1]:
            raise ConfigError(
                f"a step of {told_gpus(self.gpus)} would take {self.step_s:g} s, which none "
                "does: see in which unit its time is, and of how many examples"
            )
        if self.nodes is not None and self.nodes > self.gpus:
            raise ConfigError(
                f"{told_gpus(self.gpus)} cannot be on {self.nodes} nodes: give nodes at most {self.gpus}"
            )

    def _check_interval(self) -> None:
        low_s, high_s = (
            each if each is not None else self.step_s for each in (self.step_low_s, self.step_high_s)
        )
        around = (low_s / self.step_s, high_s / self.step_s)
        if not (1 / MOST_AROUND <= around[0] <= 1 / _DIGITS and _DIGITS <= around[1] <= MOST_AROUND):
            raise ConfigError(
                f"the step of {told_gpus(self.gpus)} takes {self.step_s:g} s, and {low_s:g} to {high_s:g} is "
                "no interval of it: step_low_s and step_high_s must be in seconds, around step_s and within "
                f"{MOST_AROUND:g} times of it; mend them, or leave them out"
            )

    @property
    def num_nodes(self) -> int:
        """As said; 1 where nobody did."""
        return self.nodes or 1

    @property
    def batch_size(self) -> float:
        """Of the whole world."""
        return self.gpus * self.batch_per_gpu

    @property
    def examples_per_s(self) -> float:
        return self.batch_size / self.step_s

    @property
    def gpu_s_per_example(self) -> float:
        return self.step_s / self.batch_per_gpu

    @property
    def relative_deviation(self) -> float:
        """One standard deviation of the step's time, as a part of it; 0 where no interval is known.

        That of the speedup counts if it is the larger: rounds may differ by more than steps of one run.
        """
        low, high = self.speedup_around or (1.0, 1.0)
        of_step = math.log((self.step_high_s or self.step_s) / (self.step_low_s or self.step_s)) / 2
        return max(of_step, (high - low) / 2) / 1.96

    @property
    def half_width(self) -> float:
        """Of the step's own interval, as a part of its time; 0 where none is known."""
        if self.step_low_s is None or self.step_high_s is None:
            return 0.0
        return max(self.step_high_s - self.step_low_s, 0.0) / 2 / self.step_s


def checked(cells: Iterable[Cell], node: Node | None = None) -> list[Cell]:
    """Cells of one job on one machine in order of GPUs, each place once (the geometric mean of repeats).

    All of them know their nodes: those of which nobody said it fill nodes like `node`.
    """
    found = list(cells)
    if not found:
        raise ConfigError("there is no cell to judge by: measure some with `samestep scale`")
    check_one_origin(found)
    without = next((cell for cell in found if not cell.is_batch_known), None)
    if without is not None and any(cell.is_batch_known for cell in found):
        raise ConfigError(
            f"the cell of {told_gpus(without.gpus)} in {without.step_s:g} s has no batch, but others have: "
            "give batch_per_gpu or batch_size for all"
        )
    node = node or node_of(found)
    by_place: dict[tuple[int, int, float], list[Cell]] = defaultdict(list)
    for cell in found:
        nodes = cell.nodes or node.num_for(cell.gpus)
        by_place[cell.gpus, nodes, cell.batch_per_gpu].append(replace(cell, nodes=nodes))
    for alike in by_place.values():
        _check_turns(alike)
    merged = [_merged(alike) for _, alike in sorted(by_place.items())]
    for one, other in pairwise(merged):
        factor = other.gpu_s_per_example / one.gpu_s_per_example
        if max(factor, 1 / factor) > _OTHER_UNIT:
            raise ConfigError(
                f"step_s is {one.step_s:g} on {told_gpus(one.gpus)} and {other.step_s:g} on {other.gpus}: "
                f"a factor of {max(factor, 1 / factor):.0f} an example; give all of them in seconds"
            )
    return merged


def _check_turns(alike: Sequence[Cell]) -> None:
    turns = sorted({cell.accumulate for cell in alike})
    if len(turns) > 1:
        raise ConfigError(
            f"{told_gpus(alike[0].gpus)} with {alike[0].batch_per_gpu:g} examples each were measured with "
            f"accumulate {listed([str(each) for each in turns])}: keep the cells of one of them"
        )


def _merged(alike: Sequence[Cell]) -> Cell:
    if len(alike) == 1:
        return alike[0]
    lows = [cell.step_low_s or cell.step_s for cell in alike]
    highs = [cell.step_high_s or cell.step_s for cell in alike]
    quickest, slowest = min(alike, key=lambda c: c.step_s), max(alike, key=lambda c: c.step_s)
    if slowest.step_s > _REPEATS * quickest.step_s:
        raise ConfigError(
            f"a step of {told_gpus(alike[0].gpus)} with {alike[0].batch_per_gpu:g} examples each is said to "
            f"take {quickest.step_s:g} s and {slowest.step_s:g} s, which are no repeats of one measurement: "
            "keep one of them, or judge the jobs one by one"
        )
    step_s = math.exp(sum(math.log(cell.step_s) for cell in alike) / len(alike))
    return replace(
        alike[0],
        step_s=step_s,
        step_low_s=min(lows),
        step_high_s=max(highs),
        cpu_utilisation=_mean([cell.cpu_utilisation for cell in alike if cell.cpu_utilisation is not None]),
        parts_s=_mean_parts(alike, step_s),
        # each speedup is over a cell of its own sweep: of several there is none but by the steps
        speedup_around=None,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _mean_parts(alike: Sequence[Cell], step_s: float) -> dict[str, float]:
    """Of the step, each part as large as it is on average; none where a repeat does not know them."""
    if not all(cell.parts_s for cell in alike):
        return {}
    names = dict.fromkeys(name for cell in alike for name in cell.parts_s)
    return {
        name: step_s * sum(cell.parts_s.get(name, 0.0) / cell.step_s for cell in alike) / len(alike)
        for name in names
    }


def places_of(cells: Sequence[Cell]) -> tuple[Places, Floats]:
    """As laws take them."""
    return (
        Places.of(
            [cell.gpus for cell in cells],
            [cell.num_nodes for cell in cells],
            [cell.batch_per_gpu for cell in cells],
            [cell.accumulate for cell in cells],
        ),
        np.array([cell.step_s for cell in cells]),
    )
