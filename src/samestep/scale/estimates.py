"""Estimates: finished runs → the median time of each variant, and draws of it. Knows no cells, no rules."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from itertools import combinations

import numpy as np

from samestep.scale.runs import Finished
from samestep.scale.statistics import Blocks, Bootstrap, Floats, Interval, Series, deviation, interval, median
from samestep.scale.variants import Variant


class Estimates:
    """Times of variants over all rounds that measured them; the same runs give the same numbers."""

    def __init__(self, runs: Iterable[Finished], *, seed: int = 0) -> None:
        self.runs: dict[Variant, list[Finished]] = defaultdict(list)
        blocks: dict[str, dict[int, Blocks]] = defaultdict(dict)
        for run in sorted(runs, key=lambda run: (run.variant, run.round)):
            self.runs[run.variant].append(run)
            if run.is_measured:
                blocks[run.variant.name][run.round] = run.blocks
        self._blocks = blocks
        self._bootstrap = Bootstrap(blocks, seed=seed)
        self._draws = cache(self._bootstrap.draws)

    def has(self, variant: Variant) -> bool:
        """Whether any round measured it."""
        return variant.name in self._blocks

    def measured(self, variant: Variant) -> list[Finished]:
        """Its runs that have times, by round."""
        return [run for run in self.runs.get(variant, []) if run.is_measured]

    def value(self, variant: Variant, series: Series = "lockstep") -> float:
        """The median over rounds of a run's mean, in whole ticks."""
        return median([blocks.value(series) for blocks in self._blocks[variant.name].values()])

    def over_rounds(self, values: Mapping[int, float]) -> tuple[float, Floats]:
        """The median of one value a round, and draws of it, of the same rounds as those of variants."""
        return float(np.median(list(values.values()))), self._bootstrap.medians(values)

    def draws(self, variant: Variant, series: Series = "lockstep") -> Floats:
        """Draws of the value, of the same rounds as those of any other variant."""
        return self._draws(variant.name, series)

    def around(self, draws: Floats, value: float) -> Interval:
        """The interval of a time, which is never below nothing."""
        usual = None if self._usual is None else self._usual * abs(value)
        found = interval(draws, value, num_rounds=self._num_rounds, usual=usual)
        return Interval(low=max(0.0, found.low), high=found.high)

    def around_difference(self, draws: Floats, value: float, of: float) -> Interval:
        """The interval of the difference of two times, which are about as long as `of`.

        A single round does not tell it: it may then be anything up to those times, in either direction.
        """
        if self._num_rounds < 2:
            return Interval(low=min(value, 0.0) - abs(of), high=max(value, 0.0) + abs(of))
        usual = None if self._usual_apart is None else self._usual_apart * of
        return interval(draws, value, num_rounds=self._num_rounds, usual=usual)

    @property
    def _num_rounds(self) -> int:
        return max((len(by_round) for by_round in self._blocks.values()), default=0)

    @cached_property
    def _relative(self) -> list[Floats]:
        """Draws of every variant that more than one round measured, as parts of its value."""
        variants = [variant for variant in self.runs if len(self._blocks.get(variant.name, ())) > 1]
        return [self.draws(variant) / self.value(variant) for variant in variants]

    @cached_property
    def _usual(self) -> float | None:
        """By what part the median of a variant is off; None if nothing tells."""
        return self._typical(self._relative)

    @cached_property
    def _usual_apart(self) -> float | None:
        """The same of two variants, of what they do not share."""
        return self._typical([one - other for one, other in combinations(self._relative, 2)])

    def _typical(self, draws: list[Floats]) -> float | None:
        """The deviation that half of them exceed: a single run that was disturbed is no matter of all.

        Of few rounds a deviation is below the true one more often than not; by what factor, Wilson and
        Hilferty (1931) tell for its square.
        """
        found = [deviation(each, self._num_rounds) for each in draws]
        return float(np.median(found)) / (1 - 2 / (9 * (self._num_rounds - 1))) ** 1.5 if found else None
