"""Several lines in one frame, as the parts of a small drawing: pure arithmetic, without HTML or colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from samestep.report.chart import Point, path_of, ticks
from samestep.report.figures import short

WIDTH, HEIGHT = 300, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 20, 8, 24


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing of `WIDTH` × `HEIGHT`: a path for each line, and ticks as (position, text).

    The path of a line without points is empty. `rules` are places of upright lines.
    """

    paths: tuple[str, ...]
    x_ticks: tuple[tuple[str, str], ...]
    y_ticks: tuple[tuple[str, str], ...]
    rules: tuple[str, ...] = ()


def plot(
    lines: Sequence[Sequence[Point]],
    *,
    x_least: float | None = None,
    y_least: float | None = None,
    y_most: float | None = None,
    rules: Sequence[float] = (),
) -> Plot | None:
    """Lines of points in order of x; None where there are no two finite points, or they are too far apart.

    The frame reaches to `x_least`, `y_least` and `y_most` at least, where they are given.
    """
    finite = [point for line in lines for point in line if all(map(math.isfinite, point))]
    xs, ys = [x for x, _ in finite], [y for _, y in finite]
    if len(finite) < 2 or max(xs) == min(xs):
        return None
    ys += [end for end in (y_least, y_most) if end is not None]
    if not math.isfinite(max(ys) - min(ys)) or not math.isfinite(max(xs) - min(xs)):
        return None
    x_high = max(xs)
    x_low = min(xs) if x_least is None else min(x_least, *xs)
    x_ticks, y_ticks = ticks(x_low, x_high, 4), ticks(min(ys), max(ys), 4)
    low, high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def across(x: float) -> str:
        return f"{LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT):.1f}"

    def down(y: float) -> str:
        return f"{HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM):.1f}"

    return Plot(
        paths=tuple(path_of([p for p in line if math.isfinite(p[0])], across, down) for line in lines),
        x_ticks=tuple((across(x), short(x)) for x in x_ticks if x_low <= x <= x_high),
        y_ticks=tuple((down(y), short(y)) for y in y_ticks),
        rules=tuple(across(x) for x in rules if x_low < x < x_high),
    )
