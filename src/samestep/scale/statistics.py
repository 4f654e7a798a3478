"""Statistics: medians over rounds, and how far to trust them.

A run is a mean over its steps, because programs stall now and then as a matter of course (every k-th batch
of a loader with k workers, say), and a median over steps would not see it. A cell is a median over rounds,
because what disturbs a machine disturbs some rounds and not others. Knows numbers only.

Intervals are of 95 %, by a bootstrap that draws rounds, then blocks of steps within each run: steps that
follow each other are alike, and so are runs of one round (Efron and Tibshirani 1993, chapter 8). All
variants are drawn with the same rounds, so that a difference of two does not have what both have.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Series = Literal["lockstep", "mean"]

NUM_DRAWS = 2000
LEVEL = 0.95
MOST_BLOCKS = 32
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
    """The steps of a run in blocks of equal length as far as they go, in two series of means.

    `lockstep` is the time of the slowest rank in each step, `mean` that of all ranks on average.
    """

    lockstep: tuple[float, ...]
    mean: tuple[float, ...]
    num_steps: tuple[int, ...]

    @classmethod
    def of(cls, steps: Floats) -> "Blocks":
        """At most `MOST_BLOCKS` blocks of steps that follow each other, of times by rank and step."""
        count = steps.shape[1]
        parts = np.array_split(steps, min(MOST_BLOCKS, count), axis=1) if count else []
        return cls(
            lockstep=tuple(float(part.max(axis=0).mean()) for part in parts),
            mean=tuple(float(part.mean()) for part in parts),
            num_steps=tuple(part.shape[1] for part in parts),
        )

    def series(self, name: Series) -> Floats:
        return np.asarray(self.lockstep if name == "lockstep" else self.mean)

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
        drawn = np.take_along_axis(means, self._drawn, axis=1)
        found = np.full(self._num_draws, np.nan)
        some = ~np.isnan(drawn).all(axis=1)
        found[some] = np.nanmedian(drawn[some], axis=1)
        return found

    def _means(self, name: str, series: Series, number: int) -> Floats:
        """Means of one run, its blocks drawn anew each time; both series of a run with the same blocks."""
        blocks = self._runs[name][number]
        count = len(blocks.num_steps)
        generator = np.random.default_rng([self._seed, 2, zlib.crc32(name.encode()), number])
        chosen = generator.integers(0, count, (self._num_draws, count))
        steps = np.asarray(blocks.num_steps, dtype=np.float64)
        values = blocks.series(series) * steps
        return np.asarray(values[chosen].sum(axis=1) / steps[chosen].sum(axis=1))


def interval(draws: Floats, value: float) -> Interval:
    """The interval of a value from its draws; it always has the value in it."""
    known = draws[~np.isnan(draws)]
    if not len(known):
        return Interval(low=value, high=value)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=min(float(low), value), high=max(float(high), value))


def coverage(num_rounds: int) -> float:
    """How often the true median lies between the least and the largest of n rounds: 1 − 2^(1−n).

    The interval of a median cannot be surer than that, since no draw leaves that range by rounds alone.
    """
    return 1.0 - 2.0 ** (1 - num_rounds) if num_rounds else 0.0
