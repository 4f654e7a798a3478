"""Speedup against ideal, as the parts of a drawing: pure arithmetic, without HTML or colours.

Numbers of GPUs stand side by side, at equal distances. Places across are parts of the width, so that the
drawing fits any window and its texts keep their size; places down are pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from samestep.report.chart import ticks
from samestep.report.figures import times
from samestep.report.sweep import CellRow

HEIGHT, TOP, BOTTOM = 270, 14, 44
LEFT, RIGHT = 9.0, 1.0
"""Parts of the width beside the frame, in percent."""
MOST_LABELS = 5
"""Numbers of GPUs up to which there is room for a label at each point."""

Place = tuple[str, str]
Segment = tuple[str, str, str, str]
"""x1, y1, x2, y2."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A measured speedup with its interval."""

    x: str
    y: str
    low: str
    high: str
    words: str
    label: str = ""
    is_low: bool = False
    """Whether its label has no room below it."""


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """Ticks as (position, text), the ideal as segments, and a line of spots for each batch."""

    x_ticks: tuple[Place, ...]
    y_ticks: tuple[Place, ...]
    ideal: tuple[Segment, ...]
    series: tuple[tuple[tuple[Spot, ...], tuple[Segment, ...]], ...]
    height: int = HEIGHT


def speedup(families: Sequence[Sequence[CellRow]]) -> Speedup | None:
    """The drawing of cells, one line for each family; None where no speedup of several GPUs is known."""
    known = [[cell for cell in family if cell.speedup is not None] for family in families]
    worlds = sorted({cell.gpus for family in known for cell in family})
    if len(worlds) < 2:
        return None
    ideals = {world: float(world) for world in worlds}
    ideals |= {cell.gpus: cell.ideal_speedup for family in known for cell in family}
    marks = ticks(0.0, max(*ideals.values(), *(_high(cell) for family in known for cell in family)), 4)
    slot = (100 - LEFT - RIGHT) / len(worlds)
    apart = min(3.0, slot / 2 / len(known))

    def across(world: int, shift: float = 0.0) -> str:
        return f"{LEFT + slot * (worlds.index(world) + 0.5) + shift:.2f}%"

    def down(value: float) -> str:
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / marks[-1]):.1f}"

    def spot(cell: CellRow, shift: float) -> Spot:
        assert cell.speedup is not None
        low = cell.speedup if cell.speedup_low is None else cell.speedup_low
        told = f"{times(cell.speedup)} ({times(low)}–{times(_high(cell))})"
        has_room = len(known) == 1 and len(worlds) <= MOST_LABELS and cell.gpus > 1
        return Spot(
            x=across(cell.gpus, shift),
            y=down(cell.speedup),
            low=down(max(0.0, low)),
            high=down(_high(cell)),
            words=f"{cell.gpus} GPUs, batch {cell.batch_size}: {told}",
            label=f"{times(cell.speedup)}×" if has_room else "",
            is_low=cell.speedup < marks[-1] / 6,
        )

    series = []
    for place, family in enumerate(known):
        spots = tuple(spot(cell, apart * (place - (len(known) - 1) / 2)) for cell in family)
        series.append((spots, tuple((a.x, a.y, b.x, b.y) for a, b in pairwise(spots))))
    points = [(across(world), down(ideals[world])) for world in worlds]
    return Speedup(
        x_ticks=tuple((across(world), str(world)) for world in worlds),
        y_ticks=tuple((down(mark), f"{mark:.3g}") for mark in marks),
        ideal=tuple((*a, *b) for a, b in pairwise(points)),
        series=tuple(series),
    )


def _high(cell: CellRow) -> float:
    return max(cell.speedup or 0.0, cell.speedup_high or 0.0)
