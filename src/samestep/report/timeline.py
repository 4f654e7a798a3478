"""A timeline of a few steps, a lane for each rank, as the parts of a drawing: no HTML or colours.

Places across are parts of the width, so that the drawing fits any window and its texts keep their size;
places down are pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from samestep.observed import Span
from samestep.report.chart import ticks
from samestep.report.figures import Unit
from samestep.report.sweep_runs import Spans

TOP, LANE, NAME, BAR_HEIGHT, BOTTOM = 20, 44, 13, 22, 24
"""Pixels: above the lanes, of a lane, to the line of its name, of its bars, below the lanes."""
MOST_RANKS = 8
MOST_STEPS = 4
LEAST_FOR_LETTER = 4.2
"""Percent of the width from which on a bar has room for a letter on a phone."""
ROOM_AT_END = 97.0
"""Percent of the width up to which a tick's text can stand in its middle."""
LETTERS = {
    "data": "D", "forward": "F", "backward": "B", "exchange": "X", "update": "U", "evaluation": "E",
    "checkpoint": "C", "other": "o",
}  # fmt: skip
"""What phases are called in a bar; another phase is drawn as other."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A phase; `words` tell it when it is pointed at."""

    x: str
    width: str
    middle: str
    phase: str
    letter: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The bars of a rank, `top` pixels down."""

    rank: int
    top: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Lanes, where steps begin, and ticks as (position, text, which end of the text is there)."""

    lanes: tuple[Lane, ...]
    steps: tuple[tuple[str, int], ...]
    x_ticks: tuple[tuple[str, str, str], ...]
    phases: tuple[str, ...]
    shown_steps: tuple[int, ...]
    num_hidden_ranks: int

    @property
    def height(self) -> int:
        return TOP + LANE * len(self.lanes) + BOTTOM


def phase_of(span: Span) -> str:
    return span.phase if span.phase in LETTERS else "other"


def chosen_steps(spans: Spans) -> tuple[int, ...]:
    """The most steps that follow one another and that all ranks have, up to a few; of several, the last."""
    shared = sorted(set.intersection(*({span.step for span in rows} for rows in spans.by_rank.values())))
    # steps that follow one another are as far apart as their places
    groups = [
        [step for _, step in group]
        for _, group in groupby(
            enumerate(shared), lambda place_and_step: place_and_step[1] - place_and_step[0]
        )
    ]
    best = max(groups, key=lambda group: (min(len(group), MOST_STEPS), group[-1]), default=[])
    return tuple(best[-MOST_STEPS:])


def timeline(spans: Spans) -> Timeline | None:
    """The drawing of a few steps of a run; None where ranks have no step in common."""
    steps = chosen_steps(spans)
    ranks = sorted(spans.by_rank)
    shown = {
        rank: [span for span in spans.by_rank[rank] if span.step in steps] for rank in ranks[:MOST_RANKS]
    }
    every = [span for rows in shown.values() for span in rows]
    if not every:
        return None
    first = min(span.began_s for span in every)
    last = max(span.began_s + span.seconds for span in every)
    if not last > first:
        return None
    unit = Unit.of(last - first)

    def across(seconds: float) -> float:
        return 100 * (seconds - first) / (last - first)

    def bar(span: Span) -> Bar:
        left, width = across(span.began_s), 100 * span.seconds / (last - first)
        phase = phase_of(span)
        return Bar(
            x=f"{left:.3f}%",
            width=f"{width:.3f}%",
            middle=f"{left + width / 2:.3f}%",
            phase=phase,
            letter=LETTERS[phase] if width >= LEAST_FOR_LETTER else "",
            words=f"step {span.step}, {span.phase}: {unit.told(span.seconds)}",
        )

    marks = [
        mark for mark in ticks(0.0, (last - first) / unit.seconds, 6) if mark * unit.seconds <= last - first
    ]
    return Timeline(
        lanes=tuple(
            Lane(rank=rank, top=TOP + LANE * place, bars=tuple(map(bar, rows)))
            for place, (rank, rows) in enumerate(shown.items())
        ),
        steps=tuple((f"{across(_begin(every, step)):.3f}%", step) for step in steps),
        x_ticks=tuple(_tick(across(first + mark * unit.seconds), mark, unit) for mark in marks),
        phases=tuple(phase for phase in LETTERS if any(phase_of(span) == phase for span in every)),
        shown_steps=steps,
        num_hidden_ranks=len(ranks) - len(shown),
    )


def _tick(at: float, mark: float, unit: Unit) -> tuple[str, str, str]:
    if not mark:
        return f"{at:.2f}%", f"0 {unit.name}", "start"
    return f"{at:.2f}%", f"{mark:.4g}", "middle" if at < ROOM_AT_END else "end"


def phase_means(spans: Spans, phases: Sequence[str]) -> list[tuple[int, list[float]]]:
    """By rank, seconds of each phase in a step, over the steps that are drawn."""
    steps = chosen_steps(spans)
    return [
        (
            rank,
            [
                sum(s.seconds for s in rows if phase_of(s) == phase and s.step in steps) / len(steps)
                for phase in phases
            ],
        )
        for rank, rows in sorted(spans.by_rank.items())[:MOST_RANKS]
    ]


def _begin(spans: Sequence[Span], step: int) -> float:
    return min(span.began_s for span in spans if span.step == step)
