"""Statistics: medians over rounds, and how far to trust them.

A run is a mean over its steps, because programs stall now and then as a matter of course (every k-th batch
of a loader with k workers, say), and a median over steps would not see it. A cell is a median over rounds,
because what disturbs a machine disturbs some rounds and not others. Knows numbers only.

Intervals are of 95 %, by a bootstrap that draws rounds, then blocks of steps within each run: steps that
follow each other are alike, and so are runs of one round (Efron and Tibshirani 1993, chapter 8). All
variants are drawn with the same rounds, so that a difference of two does not have what both have.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Series = Literal["lockstep", "mean", "fastest"]

NUM_DRAWS = 2000
LEVEL = 0.95
MOST_BLOCKS = 32
WEIGHT = 4
"""Rounds that what is usual counts for, beside those of the value itself."""
_NORMAL = 1.959964
TICK_S = 2.0**-30
"""Times are told in whole ticks of a little less than a nanosecond, up to 2 ** 22 s: their differences and
the sums of those are then exact in floating point."""
LONGEST_S = 2.0**22


def on_ticks(seconds: float) -> float:
    """The nearest whole number of ticks."""
    if not abs(seconds) <= LONGEST_S:
        raise ValueError(f"{seconds} s is no time of a step: it must be at most {LONGEST_S:.0f} s")
    return round(seconds / TICK_S) * TICK_S


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Between which values something is, nineteen times out of twenty."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def has_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The steps of a run in blocks of equal length as far as they go, in three series of means.

    `lockstep` is the time of the slowest rank in each step, `mean` that of all ranks on average, and
    `fastest` that of the rank which is the fastest over the whole run.
    """

    lockstep: tuple[float, ...]
    mean: tuple[float, ...]
    fastest: tuple[float, ...]
    num_steps: tuple[int, ...]

    @classmethod
    def of(cls, steps: Floats) -> "Blocks":
        """At most `MOST_BLOCKS` blocks of steps that follow each other, of times by rank and step."""
        count = steps.shape[1]
        parts = np.array_split(steps, min(MOST_BLOCKS, count), axis=1) if count else []
        fastest = int(steps.mean(axis=1).argmin()) if count else 0
        return cls(
            lockstep=tuple(float(part.max(axis=0).mean()) for part in parts),
            mean=tuple(float(part.mean()) for part in parts),
            fastest=tuple(float(part[fastest].mean()) for part in parts),
            num_steps=tuple(part.shape[1] for part in parts),
        )

    def series(self, name: Series) -> Floats:
        by_name = {"lockstep": self.lockstep, "mean": self.mean, "fastest": self.fastest}
        return np.asarray(by_name[name])

    def value(self, name: Series) -> float:
        """The mean of a series over all steps."""
        return float(np.average(self.series(name), weights=self.num_steps))


def median(values: Sequence[float]) -> float:
    """The median in ticks; of an even number of values, the middle between two."""
    return on_ticks(float(np.median(values)))


class Bootstrap:
    """Draws of the medians of many variants, the same rounds for all of them.

    `runs` has the blocks of each variant, by its name, by round. The same runs give the same draws; a further
    variant changes none of those of others unless it has a further round.
    """

    def __init__(
        self, runs: Mapping[str, Mapping[int, Blocks]], *, seed: int = 0, num_draws: int = NUM_DRAWS
    ) -> None:
        self._runs = runs
        self._seed = seed
        self._num_draws = num_draws
        self._rounds = sorted({number for by_round in runs.values() for number in by_round})
        # which rounds, for all variants alike
        shape = (num_draws, len(self._rounds))
        self._drawn = np.random.default_rng([seed, 1]).integers(0, max(1, len(self._rounds)), shape)

    def draws(self, name: str, series: Series) -> Floats:
        """Medians of one variant; NaN in draws that have none of its rounds."""
        by_round = self._runs[name]
        means = np.full((self._num_draws, len(self._rounds)), np.nan)
        for column, number in enumerate(self._rounds):
            if number in by_round and by_round[number].num_steps:
                means[:, column] = self._means(name, series, number)
        return _medians(np.take_along_axis(means, self._drawn, axis=1))

    def medians(self, values: Mapping[int, float]) -> Floats:
        """Draws of the median of one value a round; NaN in draws that have none of its rounds."""
        of_rounds = np.array([values.get(number, np.nan) for number in self._rounds])
        return _medians(of_rounds[self._drawn])

    def _means(self, name: str, series: Series, number: int) -> Floats:
        """Means of one run, its blocks drawn anew each time; all series of a run with the same blocks."""
        blocks = self._runs[name][number]
        count = len(blocks.num_steps)
        generator = np.random.default_rng([self._seed, 2, zlib.crc32(name.encode()), number])
        chosen = generator.integers(0, count, (self._num_draws, count))
        steps = np.asarray(blocks.num_steps, dtype=np.float64)
        values = blocks.series(series) * steps
        return np.asarray(values[chosen].sum(axis=1) / steps[chosen].sum(axis=1))


def _medians(drawn: Floats) -> Floats:
    """The median of each row, of what is known of it."""
    found = np.full(len(drawn), np.nan)
    some = ~np.isnan(drawn).all(axis=1)
    found[some] = np.nanmedian(drawn[some], axis=1)
    return found


def interval(
    draws: Floats, value: float, *, num_rounds: int | None = None, usual: float | None = None
) -> Interval:
    """The interval of a value from its draws; it always has the value in it.

    Draws of few rounds are too much alike: none leaves the range of those rounds, and two or three that agree
    by chance say little of how much rounds differ. So for `num_rounds` n, the variance v of the draws is made
    that of a sample, v · n / (n − 1); it is moderated by `usual`, the deviation of such values among all that
    was measured, which counts as much as `WEIGHT` more rounds (Smyth 2004); and the draws are spread as much
    further as Student's t goes beyond the normal distribution (Hesterberg 2015, expanded percentiles).
    """
    known = draws[~np.isnan(draws)]
    if not len(known):
        return Interval(low=value, high=value)
    low, high = (float(end) for end in np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    if num_rounds is not None and num_rounds > 1:
        own = deviation(known, num_rounds)
        freedom = num_rounds - 1
        wanted = own
        if usual is not None:
            wanted = math.sqrt((WEIGHT * usual**2 + freedom * own**2) / (WEIGHT + freedom))
            freedom += WEIGHT
        wanted *= _student(freedom) / _NORMAL
        drawn = float(known.std())
        # draws that hardly differ have no shape to be spread
        if drawn > wanted / 1e6:
            low, high = (value + (end - value) * wanted / drawn for end in (low, high))
        else:
            low, high = value - _NORMAL * wanted, value + _NORMAL * wanted
    return Interval(low=min(low, value), high=max(high, value))


def deviation(draws: Floats, num_rounds: int) -> float:
    """How far a median over so many rounds is off, as its draws tell."""
    known = draws[~np.isnan(draws)]
    return float(known.std()) * math.sqrt(num_rounds / (num_rounds - 1)) if len(known) else 0.0


def _student(freedom: int) -> float:
    """The quantile of Student's t that is `_NORMAL` of the normal distribution; beyond 4 by series.

    Abramowitz and Stegun 1964, 26.7.5.
    """
    if freedom < 5:
        return (12.706, 4.303, 3.182, 2.776)[freedom - 1]
    z, v = _NORMAL, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
