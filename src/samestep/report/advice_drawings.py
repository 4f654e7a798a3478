"""Advice in four small drawings: pure arithmetic, without HTML or colours.

Numbers of GPUs stand side by side at distances of their logarithms. Drawings are `WIDTH` × `HEIGHT`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samestep.advise.words import gpus as told_gpus
from samestep.advise.words import told
from samestep.report.advised import OfferRow
from samestep.report.chart import ticks
from samestep.report.figures import short

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 10, 40

Tick = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A point of a line."""

    x: str
    y: str
    words: str
    label: str = ""
    is_measured: bool = True
    is_asked: bool = False


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Paths of a line, of the band about it and of what it is compared with; empty where there is none."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    line: str
    spots: tuple[Spot, ...]
    words: str
    band: str = ""
    ideal: str = ""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a stacked bar."""

    kind: str
    x: str
    width: str


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The time to a result on so many GPUs, with its end at nine times out of ten."""

    name: str
    top: int
    pieces: tuple[Piece, ...]
    end: str
    high: str
    value: str
    is_asked: bool


def speedups(rows: Sequence[OfferRow], asked: int) -> Drawing | None:
    """Speedup with its band, against ideal."""
    if len(rows) < 2:
        return None
    most = max(row.speedup_high for row in rows)
    scale = _Frame.of([row.gpus for row in rows], [0.0, min(most, 1.5 * max(row.speedup for row in rows))])
    points = [(row.gpus, row.speedup) for row in rows]
    high = [(row.gpus, min(row.speedup_high, scale.high)) for row in rows]
    low = [(row.gpus, row.speedup_low) for row in reversed(rows)]
    ideal = [(row.gpus, row.gpus) for row in rows if row.gpus <= scale.high]
    return Drawing(
        x_ticks=scale.worlds([row.gpus for row in rows]),
        y_ticks=scale.marks(lambda value: f"{value:.3g}"),
        line=scale.path(points),
        band=scale.path([*high, *low]) + "Z",
        ideal=scale.path(ideal),
        spots=tuple(
            _spot(scale, row, row.kind, row.speedup, f"{row.speedup_low:.2f}–{row.speedup_high:.2f}", asked)
            for row in rows
        ),
        words="; ".join(f"{told_gpus(row.gpus)} ({row.kind}): {row.speedup:.2f}" for row in rows),
    )


def growing(rows: Sequence[OfferRow], asked: int) -> Drawing | None:
    """How many times the examples are needed if the batch grows with the GPUs; None where it is not known."""
    known = [
        (row, grown)
        for row in rows
        if (grown := row.grows_batch) is not None
        and grown.is_examples_factor_known
        and grown.batch_size is not None
    ]
    if len(known) < max(2, len(rows)):
        return None
    factors = [grown.examples_factor for _, grown in known]
    worlds = [row.gpus for row, _ in known]
    highs = [grown.examples_factor_high or grown.examples_factor for _, grown in known]
    lows = [grown.examples_factor_low or 1.0 for _, grown in known]
    scale = _Frame.of(worlds, [1.0, *lows, *factors, min(max(highs), 2 * max(factors))])
    return Drawing(
        x_ticks=scale.worlds(worlds),
        y_ticks=scale.marks(lambda value: f"{value:.3g}"),
        line=scale.path(list(zip(worlds, factors, strict=True))),
        band=scale.path(
            [
                *((gpus, min(high, scale.high)) for gpus, high in zip(worlds, highs, strict=True)),
                *reversed(list(zip(worlds, lows, strict=True))),
            ]
        )
        + "Z",
        spots=tuple(
            # nobody measured how many examples a batch needs: all of it follows from the noise scale
            _spot(scale, row, "by the noise scale", factor, f"batch {grown.batch_size:,.0f}", asked)
            for (row, grown), factor in zip(known, factors, strict=True)
        ),
        words="; ".join(
            f"{told_gpus(gpus)}: {factor:.2f}" for gpus, factor in zip(worlds, factors, strict=True)
        ),
    )


def costs(rows: Sequence[OfferRow], asked: int) -> Drawing | None:
    """Cost against time to the result; the line joins those that no other beats in both."""
    if len(rows) < 2:
        return None
    is_priced = all(row.cost is not None for row in rows)
    paid = {row.gpus: row.cost if is_priced and row.cost is not None else row.gpu_hours for row in rows}
    hours = {row.gpus: row.result_s / 3600 for row in rows}
    scale = _Frame.of(list(hours.values()), [0.0, *paid.values()], is_log=False)
    front = sorted((hours[row.gpus], paid[row.gpus]) for row in rows if row.is_pareto)
    return Drawing(
        x_ticks=tuple((scale.across(x), short(x)) for x in ticks(0.0, scale.last, 4) if x <= scale.last),
        y_ticks=scale.marks(short),
        line=scale.path(front),
        spots=tuple(
            Spot(
                x=scale.across(hours[row.gpus]),
                y=scale.down(paid[row.gpus]),
                words=f"{told_gpus(row.gpus)}: {told(row.result_s)}, {paid[row.gpus]:.3g}",
                label=str(row.gpus) if row.is_pareto or row.gpus == asked else "",
                is_measured=row.kind == "measured",
                is_asked=row.gpus == asked,
            )
            for row in rows
        ),
        words="; ".join(f"{told_gpus(row.gpus)}: {told(row.result_s)}, {paid[row.gpus]:.3g}" for row in rows),
    )


BAR = 40


def stacks(rows: Sequence[OfferRow], asked: int) -> list[Stack]:
    """Wait, start and training of each row; places across are parts of the width, places down are pixels."""
    most = max(row.result_high_s for row in rows) or 1.0
    longest = min(most, 2.5 * max(row.result_s for row in rows)) or 1.0
    found = []
    for place, row in enumerate(rows):
        begin, pieces = 0.0, []
        for kind, seconds in (("wait", row.wait_s), ("start", row.start_s), ("train", row.train_s)):
            pieces.append(Piece(kind=kind, x=_part(begin / longest), width=_part(seconds / longest)))
            begin += seconds
        found.append(
            Stack(
                name=told_gpus(row.gpus),
                top=place * BAR,
                pieces=tuple(piece for piece in pieces if piece.width != "0.00%"),
                end=_part(begin / longest),
                high=_part(min(1.0, row.result_high_s / longest)),
                value=told(row.result_s),
                is_asked=row.gpus == asked,
            )
        )
    return found


def _part(value: float) -> str:
    """Of the width, beside the names."""
    return f"{100 * value:.2f}%"


def _spot(scale: "_Frame", row: OfferRow, kind: str, value: float, words: str, asked: int) -> Spot:
    return Spot(
        x=scale.across(row.gpus),
        y=scale.down(value),
        words=f"{told_gpus(row.gpus)}, {kind}: {value:.2f} ({words})",
        label=str(row.gpus) if row.gpus == asked else "",
        is_measured=kind == "measured",
        is_asked=row.gpus == asked,
    )


@dataclass(frozen=True, kw_only=True)
class _Frame:
    first: float
    last: float
    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, xs: Sequence[float], ys: Sequence[float], *, is_log: bool = True) -> "_Frame":
        marks = ticks(min(ys), max(ys), 4)
        return cls(
            first=min(xs) if is_log else 0.0, last=max(xs), low=marks[0], high=marks[-1], is_log=is_log
        )

    def across(self, x: float) -> str:
        place, first, last = (math.log2(v) if self.is_log else v for v in (x, self.first, self.last))
        part = (place - first) / ((last - first) or 1.0)
        return f"{LEFT + part * (WIDTH - LEFT - RIGHT):.1f}"

    def down(self, y: float) -> str:
        part = (y - self.low) / ((self.high - self.low) or 1.0)
        return f"{HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM):.1f}"

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.across(x)} {self.down(y)}" for x, y in points) if points else ""

    def worlds(self, worlds: Sequence[int]) -> tuple[Tick, ...]:
        """Powers of two, and all of them where they are few."""
        shown = [n for n in worlds if len(worlds) <= 6 or n & (n - 1) == 0]
        return tuple((self.across(n), f"{n:,}") for n in shown)

    def marks(self, form: Callable[[float], str]) -> tuple[Tick, ...]:
        return tuple(
            (self.down(y), form(y)) for y in ticks(self.low, self.high, 4) if self.low <= y <= self.high
        )
