"""Estimates: finished runs → the median time of each variant, and draws of it. Knows no cells, no rules."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from samestep.scale.runs import Finished
from samestep.scale.statistics import Blocks, Bootstrap, Floats, Series, median
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

    def draws(self, variant: Variant, series: Series = "lockstep") -> Floats:
        """Draws of the value, of the same rounds as those of any other variant."""
        return self._draws(variant.name, series)
