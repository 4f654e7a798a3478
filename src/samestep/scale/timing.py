"""Timing: the rows of a run → the time of each step on each rank, and where its warm-up ends.

A step's time is from the end of the step before to its own, as its rank saw it, without evaluation and
checkpoints in between; the first has no step before it, and what the program did before it asked for a batch
is start-up. Where a device runs behind the host, single steps cannot be told apart without slowing
them down: each step of a block then has the block's mean, whose ends are synchronised, and those of a block
that the program's end cut short have none.

Knows steps and seconds. What a program did in them is not its matter.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from samestep.errors import RecordError
from samestep.observed import BETWEEN_STEPS, Machine, Row, Timing
from samestep.scale.statistics import Floats

BATCH = 5
"""Steps that the detection of warm-up takes together."""
FEWEST_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """How many steps at the beginning do not count; `is_over` is False if they still change at the end."""

    num_steps: int
    is_over: bool


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """The steps that all ranks took; `step_s` has a row a rank."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    """Their numbers, in order."""
    step_s: Floats
    warm_up: WarmUp

    @property
    def kept_s(self) -> Floats:
        """Times of the steps after warm-up."""
        return self.step_s[:, self.warm_up.num_steps :]

    @property
    def first_kept(self) -> int:
        """Number of the first step after warm-up."""
        return self.steps[self.warm_up.num_steps]


def run_times(rows_of_ranks: Mapping[int, Iterable[Row]]) -> RunTimes:
    """The times of a run, from the rows of its ranks; of steps that only some ranks took there are none."""
    times = {rank: _step_times(list(rows)) for rank, rows in sorted(rows_of_ranks.items())}
    shared = sorted(set.intersection(*(set(of_rank) for of_rank in times.values())) if times else ())
    if not shared:
        counts = ", ".join(f"rank {rank} has {len(of_rank)}" for rank, of_rank in times.items())
        raise RecordError(
            f"The times of a run's steps were to be read, and there is no step that all ranks took "
            f"({counts or 'no rank left rows'}); let the program take some steps below the timing probe."
        )
    step_s = np.array([[of_rank[step] for step in shared] for of_rank in times.values()], dtype=np.float64)
    return RunTimes(
        ranks=tuple(times), steps=tuple(shared), step_s=step_s, warm_up=warm_up(step_s.max(axis=0))
    )


def warm_up(series: Floats) -> WarmUp:
    """The beginning to leave out, so that the mean of the rest is known best: MSER-5 (White 1997).

    Means y of batches of 5 steps; leave out the d first of n that minimise Σ (y − mean)² / (n − d)², both
    over the n − d others, for d up to n / 2. If the minimum is at the very end of that range, and the steps
    that are left still change, they have not settled. Fewer than 20 steps are taken one by one (MSER).
    """
    size = BATCH if len(series) >= BATCH * FEWEST_BATCHES else 1
    count = len(series) // size
    if count < FEWEST_BATCHES:
        return WarmUp(num_steps=0, is_over=False)
    means = series[: count * size].reshape(count, size).mean(axis=1)
    means = means - means[-1]  # small numbers, so that squares lose nothing
    left = np.arange(count, 0, -1)
    first = np.cumsum(means[::-1])[::-1]
    second = np.cumsum(means[::-1] ** 2)[::-1]
    errors = np.maximum(second - first**2 / left, 0.0) / left**2
    furthest = count // 2
    best = int(np.argmin(errors[: furthest + 1]))
    return WarmUp(num_steps=best * size, is_over=best < furthest or not _changes(series[best * size :]))


def _changes(series: Floats) -> bool:
    """Whether the second half differs from the first by more than three standard errors.

    Of steps that only scatter, the minimum is at the end of its range one time in three if there are few.
    """
    first, second = np.array_split(series, 2)
    error = np.sqrt(first.var() / len(first) + second.var() / len(second))
    return bool(abs(first.mean() - second.mean()) > 3 * error)


def between_steps_s(block: Timing) -> float:
    """Seconds of a block that belong to no step."""
    return sum(block.phases_s.get(phase, 0.0) for phase in BETWEEN_STEPS)


def _step_times(rows: Sequence[Row]) -> dict[int, float]:
    machine = next((row for row in rows if isinstance(row, Machine)), None)
    is_on_host = machine is None or machine.device.startswith("cpu")
    blocks = [row for row in rows if isinstance(row, Timing)]
    if not is_on_host and len(blocks) > 2 and not blocks[-1].num_steps:
        del blocks[-2]  # the program ended in it: when the device was done with its last step is not known
    found: dict[int, float] = {}
    for block in blocks:
        if block.num_steps > 0:
            if block.first_step == block.num_steps == 1:
                times = [max(0.0, block.seconds - between_steps_s(block) - block.phases_s.get("other", 0.0))]
            elif is_on_host and len(block.step_s) == block.num_steps:
                times = list(block.step_s)
            else:
                mean = max(0.0, block.seconds - between_steps_s(block)) / block.num_steps
                times = [mean] * block.num_steps
            found |= {block.first_step + i: seconds for i, seconds in enumerate(times)}
    return found
