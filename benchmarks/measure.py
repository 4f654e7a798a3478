"""Two programs side by side: blocks of steps in random order, then medians and bootstrap intervals.

A machine that gets slower or faster does so for both programs of a round, so only their ratio or
difference within a round is looked at. Knows nothing of training.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median and its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Seconds a step of two programs, round by round."""

    ours_s: list[float]
    theirs_s: list[float]

    @property
    def our_step_s(self) -> float:
        return float(np.median(self.ours_s))

    @property
    def their_step_s(self) -> float:
        return float(np.median(self.theirs_s))

    def throughput(self) -> Estimate:
        """Our throughput as a part of theirs: above 1 is faster."""
        return median([theirs / ours for ours, theirs in zip(self.ours_s, self.theirs_s, strict=True)])

    def added_s(self) -> Estimate:
        """Seconds a step that ours takes more than theirs."""
        return median([ours - theirs for ours, theirs in zip(self.ours_s, self.theirs_s, strict=True)])


def median(values: list[float]) -> Estimate:
    """The median of `values`, with the percentile interval of a bootstrap over rounds."""
    drawn = np.random.default_rng(0).choice(values, size=(_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Estimate(value=float(np.median(values)), low=float(low), high=float(high))


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a comparison is: rounds, and about how many seconds each program has in one."""

    rounds: int
    block_s: float


QUICK = Length(rounds=3, block_s=0.0)
"""One step a round: shows that a benchmark runs, and nothing else."""


def compare(
    ours: Iterator[object],
    theirs: Iterator[object],
    length: Length,
    *,
    most: Callable[[float], float] = lambda seconds: seconds,
) -> Rounds:
    """Let two programs, endless iterators that make one step at a time, take turns in random order.

    On several ranks `most` is the largest of their times, so that all choose the same length of blocks; it
    also makes them start a block together.
    """
    warm_up = [_timed(program, 3, most) for program in (ours, theirs) for _ in range(3)]
    num_steps = max(1, round(length.block_s / warm_up[-1]))
    order = random.Random(0)
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(length.rounds):
        for which in order.sample((0, 1), 2):
            seconds[which].append(_timed((ours, theirs)[which], num_steps, most))
    # the first round is warm-up as well: allocators and caches have just met the two together
    return Rounds(ours_s=seconds[0][1:], theirs_s=seconds[1][1:])


def _timed(program: Iterator[object], num_steps: int, most: Callable[[float], float]) -> float:
    start = time.perf_counter()
    for _ in range(num_steps):
        next(program)
    return most(time.perf_counter() - start) / num_steps
