"""Curves: loss against steps, examples and time, from the rows of a cell's `full` runs.

Faster is not better if the loss falls more slowly, and only the curve has both. A loss that is not finite, or
not known, is None from the rows on, so that a curve shows where training broke.

Knows rows and numbers; draws nothing.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from samestep.errors import RecordError
from samestep.observed import Row, Timing
from samestep.scale.statistics import Floats
from samestep.scale.timing import run_times
from samestep.scale.variants import Cell

MOST_POINTS = 500


class Point(NamedTuple):
    """The end of a step: its number, examples and seconds of steps until then, and its loss."""

    step: int
    examples: int | None
    seconds: float
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The way of a cell's loss."""

    gpus: int
    batch_size: int
    points: tuple[Point, ...]


class _Run(NamedTuple):
    """A run, by step; what is not known is NaN, and a loss that is not finite is infinite."""

    steps: Sequence[int]
    examples: Floats
    """Until the end of the step, over all ranks."""
    seconds: Floats
    loss: Floats


def curve(cell: Cell, runs: Iterable[Mapping[int, Sequence[Row]]]) -> Curve:
    """The median curve of the runs of a cell, each the rows of its ranks; runs without times do not count.

    A loss that is not finite is larger than any other, and so the median is None if half of the runs have
    one. Where a run ends earlier than others, the curve goes on with what those have beyond it.
    """
    known = [run for rows in runs if (run := _run(rows)) is not None]
    return Curve(gpus=cell.gpus, batch_size=cell.batch_size, points=thinned(_median(known)))


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most so many of the points, evenly spread, the first and the last among them.

    A point has no loss if one of those that it stands for, since the point before, has none.
    """
    if len(points) <= most:
        return tuple(points)
    chosen = np.linspace(0, len(points) - 1, most).round().astype(int).tolist()
    found = []
    for before, at in zip([-1, *chosen], chosen, strict=False):
        is_whole = all(point.loss is not None for point in points[before + 1 : at + 1])
        found.append(points[at] if is_whole else points[at]._replace(loss=None))
    return tuple(found)


def _run(rows: Mapping[int, Sequence[Row]]) -> _Run | None:
    try:
        times = run_times(rows)
    except RecordError:
        return None
    by_rank = [_losses_and_examples(rows[rank], times.steps) for rank in times.ranks]
    losses, examples = (np.array(part) for part in zip(*by_rank, strict=True))
    return _Run(
        steps=times.steps,
        examples=np.cumsum(examples.sum(axis=0)),
        # a step has ended when the last rank is at its end
        seconds=np.cumsum(times.step_s, axis=1).max(axis=0),
        loss=_over_ranks(losses, examples),
    )


def _over_ranks(losses: Floats, examples: Floats) -> Floats:
    """The loss of each step over all ranks, of losses and examples by rank and step.

    A rank without examples has no say. Where examples are not known, all ranks have the same weight.
    """
    weights = np.where(np.isnan(examples).any(axis=0), 1.0, examples)
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = np.where(weights == 0, 0.0, losses * weights).sum(axis=0)
        found = sums / weights.sum(axis=0)
    return np.where(np.isfinite(found), found, np.inf)


def _losses_and_examples(rows: Iterable[Row], steps: Sequence[int]) -> tuple[list[float], list[float]]:
    """By step; a block's examples are shared out evenly over its steps."""
    losses: dict[int, float] = {}
    examples: dict[int, float] = {}
    for block in rows:
        # the last may have no step, only what the program did after them
        if isinstance(block, Timing) and block.num_steps > 0:
            numbers = range(block.first_step, block.first_step + block.num_steps)
            # of a block that was cut short there may be fewer
            known = [math.nan if loss is None else loss for loss in block.losses]
            losses |= dict(zip(numbers, known, strict=False))
            if block.num_examples is not None:
                examples |= dict.fromkeys(numbers, block.num_examples / block.num_steps)
    return [losses.get(step, math.nan) for step in steps], [examples.get(step, math.nan) for step in steps]


def _median(runs: Sequence[_Run]) -> list[Point]:
    """The medians of the runs that have a step, counted on from where the runs before ended."""
    steps_of = [set(run.steps) for run in runs]
    points: list[Point] = []
    members: list[int] = []
    start = Point(step=0, examples=0, seconds=0.0, loss=None)
    for step in sorted({step for run in runs for step in run.steps}):
        having = [i for i, known in enumerate(steps_of) if step in known]
        if having != members:
            members, start = having, points[-1] if points else start
        found = [_since(runs[i], start.step, step) for i in members]
        examples, seconds, losses = zip(*found, strict=True)
        drawn = float(np.median(examples)) + (math.nan if start.examples is None else start.examples)
        loss = float(np.median(losses))
        points.append(
            Point(
                step=step,
                examples=None if math.isnan(drawn) else round(drawn),
                seconds=start.seconds + float(np.median(seconds)),
                loss=loss if math.isfinite(loss) else None,
            )
        )
    return points


def _since(run: _Run, start: int, step: int) -> tuple[float, float, float]:
    """Examples and seconds from one step to another, and the loss of that."""
    at, before = bisect_left(run.steps, step), bisect_right(run.steps, start) - 1
    examples, seconds = (
        float(series[at] - (series[before] if before >= 0 else 0.0)) for series in (run.examples, run.seconds)
    )
    return examples, seconds, float(run.loss[at])
