"""A few steps of each number of GPUs, phase by phase and rank by rank."""

from collections.abc import Mapping
from typing import Any

from samestep.report.figures import Unit, gpus
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.sweep_runs import Spans, full_runs, spans_of
from samestep.report.timeline import BAR_HEIGHT, LANE, LETTERS, NAME, TOP, Timeline, phase_means, timeline
from samestep.report.wording import counted, joined

MOST_WORLDS = 8


def _values(material: Material) -> Mapping[str, Any] | None:
    if material.sweep is None:
        return None
    pictures = []
    found = full_runs(material.folder)
    for cell, runs in list(found.items())[:MOST_WORLDS]:
        spans = spans_of(runs)
        drawn = timeline(spans) if spans is not None else None
        if spans is not None and drawn is not None:
            pictures.append(
                (f"{gpus(cell.gpus)}, batch {cell.batch_size}", drawn, _words(drawn), _table(spans, drawn))
            )
    if not pictures:
        return None
    used = {phase for _, drawn, _, _ in pictures for phase in drawn.phases}
    return {
        "pictures": pictures,
        "legend": [(letter, phase) for phase, letter in LETTERS.items() if phase in used],
        "num_hidden": max(0, len(found) - MOST_WORLDS),
        "size": {"lane": LANE, "name": NAME, "bar": BAR_HEIGHT, "top": TOP},
    }


def _words(drawn: Timeline) -> str:
    first, last = drawn.shown_steps[0], drawn.shown_steps[-1]
    steps = f"Step {first}" if first == last else f"Steps {first} to {last}"
    phases = joined([f"{phase} ({LETTERS[phase]})" for phase in drawn.phases])
    return f"{steps} on {counted(len(drawn.lanes), 'rank')}, one lane each, with the phases {phases}."


def _table(spans: Spans, drawn: Timeline) -> dict[str, Any]:
    """Time of each phase in a step, by rank."""
    means = phase_means(spans, drawn.phases)
    unit = Unit.of(max(value for _, values in means for value in values) or 1e-3)
    return {
        "phases": drawn.phases,
        "unit": unit.name,
        "rows": [(rank, [unit.number(value) for value in values]) for rank, values in means],
        "has_one_clock": spans.has_one_clock,
    }


SECTION = Section(name="timeline", title="A few steps, rank by rank", short="Timeline", values=_values)
