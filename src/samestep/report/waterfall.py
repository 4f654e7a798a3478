"""A waterfall from ideal to measured time, as the parts of a drawing: pure arithmetic, no HTML or colours.

Bars lie one below another. Places across are parts of the width, so that the drawing fits any window and its
texts keep their size; places down are pixels.
"""

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Literal

from samestep.report.figures import Unit
from samestep.report.sweep import BarsRow

ROW, TEXT, BAR, BAR_HEIGHT = 46, 13, 20, 15
"""Pixels: of a row, and from its top to the line of its text and to its bar."""
LEAST_WIDTH, LEAST_HATCHED = 0.4, 2.0
"""Percent of the width: less cannot be seen, or not seen as hatched."""
MOST_NAME = 26
"""Characters of a name that have room beside its value on a phone."""

Kind = Literal["end", "lost", "won", "noise"]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row; `low` and `high` are the ends of its interval, `begin` and
    `join` are where it begins and where the next one does."""

    name: str
    kind: Kind
    top: int
    x: str
    width: str
    begin: str
    join: str
    value: str
    range: str = ""
    low: str = ""
    high: str = ""


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """The rows, how high they are together, and what the picture shows in words."""

    bars: tuple[Bar, ...]
    words: str

    @property
    def height(self) -> int:
        return len(self.bars) * ROW


def waterfall(rows: BarsRow, *, ideal: str, measured: str) -> Waterfall:
    """The drawing of a gap; `ideal` and `measured` are what its ends are called.

    A bar that is noise is drawn as its whole interval, since nothing tells where in it the bar ends.
    """
    unit = Unit.of(max(abs(rows.measured_s), abs(rows.ideal_s)), digits=4)
    # what is nothing at all, and not only about nothing, needs no bar
    parts = [part for part in rows.parts if part.seconds or part.low or part.high]
    begins = list(accumulate((part.seconds for part in parts), initial=rows.ideal_s))
    intervals = [
        (begin + part.low, begin + part.high) for begin, part in zip(begins[:-1], parts, strict=True)
    ]
    places = [0.0, rows.measured_s, *begins, *chain.from_iterable(intervals)]
    lowest, highest = min(places), max(places)

    def across(seconds: float) -> float:
        return 100 * (seconds - lowest) / ((highest - lowest) or 1.0)

    def stretch(start: float, end: float, least: float = LEAST_WIDTH) -> tuple[str, str]:
        left, right = sorted((across(start), across(end)))
        width = max(right - left, least)
        left = (left + right - width) / 2
        return _percent(min(max(0.0, left), 100 - width)), _percent(width)

    def end_bar(name: str, row: int, seconds: float) -> Bar:
        x, width = stretch(0.0, seconds)
        join = _percent(across(seconds))
        return Bar(
            name=name,
            kind="end",
            top=row * ROW,
            x=x,
            width=width,
            begin=join,
            join=join,
            value=unit.told(seconds),
        )

    bars = [end_bar(ideal, 0, rows.ideal_s)]
    for row, part in enumerate(parts, start=1):
        begin, end = begins[row - 1], begins[row]
        low, high = intervals[row - 1]
        x, width = stretch(low, high, LEAST_HATCHED) if part.is_noise else stretch(begin, end)
        bars.append(
            Bar(
                name=_short(part.name),
                kind="noise" if part.is_noise else "lost" if part.seconds > 0 else "won",
                top=row * ROW,
                x=x,
                width=width,
                begin=_percent(across(begin)),
                join=_percent(across(end)),
                value=unit.signed(part.seconds),
                range=unit.range(part.low, part.high),
                low=_percent(across(low)),
                high=_percent(across(high)),
            )
        )
    bars.append(end_bar(measured, len(bars), rows.measured_s))
    told = "; ".join(f"{bar.name} {bar.value}{' (noise)' * (bar.kind == 'noise')}" for bar in bars)
    return Waterfall(bars=tuple(bars), words=f"Bars from top to bottom: {told}.")


def _short(name: str) -> str:
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…"


def _percent(value: float) -> str:
    return f"{value:.2f}%"
