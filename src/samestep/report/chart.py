"""A line over steps as the parts of a small drawing: pure arithmetic, without HTML or colours."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 8, 24
NUM_BINS = 300

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing of `WIDTH` × `HEIGHT`: a path for SVG, and ticks as (position, text).

    `num_not_finite` values leave gaps, the first of them at `first_not_finite`.
    """

    path: str
    x_ticks: tuple[tuple[str, str], ...]
    y_ticks: tuple[tuple[str, str], ...]
    smallest: float
    largest: float
    last: float
    num_not_finite: int
    first_not_finite: float | None


def chart(points: Sequence[Point]) -> Chart | None:
    """A chart of points in order of x; None where fewer than two of them are finite, or too far apart."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    lost = [x for x, y in points if not math.isfinite(y)]
    ys = [y for _, y in finite]
    if len(finite) < 2 or not math.isfinite(max(ys) - min(ys)):
        return None
    x_ticks = ticks(finite[0][0], finite[-1][0], 4)
    x_low, x_high = x_ticks[0], finite[-1][0]
    y_ticks = ticks(min(ys), max(ys), 4)
    low, high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def across(x: float) -> str:
        return f"{LEFT + (x - x_low) / ((x_high - x_low) or 1) * (WIDTH - LEFT - RIGHT):.1f}"

    def down(y: float) -> str:
        return f"{HEIGHT - BOTTOM - (y - low) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM):.1f}"

    return Chart(
        path=path_of(points, across, down),
        x_ticks=tuple((across(x), f"{x:,.10g}") for x in x_ticks if x <= x_high),
        y_ticks=tuple((down(y), f"{y:.4g}") for y in y_ticks),
        smallest=min(ys),
        largest=max(ys),
        last=ys[-1],
        num_not_finite=len(lost),
        first_not_finite=lost[0] if lost else None,
    )


def path_of(points: Sequence[Point], across: Callable[[float], str], down: Callable[[float], str]) -> str:
    """A path for SVG through the points, of many of them; what is not finite leaves a gap."""
    lines = [
        "L".join(f"{across(x)} {down(y)}" for x, y in group)
        for is_line, group in groupby(thinned(points), lambda p: math.isfinite(p[1]))
        if is_line
    ]
    return "".join(f"M{line}" if "L" in line else f"M{line}h0.1" for line in lines)


_SMALLEST = 1e3 * sys.float_info.min  # of still smaller numbers a part may be 0


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, about `count` + 1 of them."""
    span = max((high - low) or abs(low) or 1.0, _SMALLEST)
    power = 10.0 ** math.floor(math.log10(span / count))
    size = next(part * power for part in (1, 2, 5, 10) if part * power * count >= span * (1 - 1e-9))
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [k * size for k in range(first, max(last, first + 1) + 1)]


def thinned(points: Sequence[Point]) -> Iterator[Point]:
    """Of many points the lowest and the highest in each of `NUM_BINS` parts; those not finite as they are."""
    if len(points) <= 2 * NUM_BINS:
        yield from points
        return
    first, last = points[0][0], points[-1][0]
    width = (last - first) / NUM_BINS or 1.0
    for (_, is_finite), group in groupby(
        points, lambda p: (int((p[0] - first) / width), math.isfinite(p[1]))
    ):
        part = list(group)
        if is_finite:
            yield from sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
        else:
            yield part[0]
