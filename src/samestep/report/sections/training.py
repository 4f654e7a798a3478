"""How a training run went: what it ended with, and its loss and learning rate over the steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.record import Record
from samestep.report import chart
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.wording import label, number, told

_DRAWN = (("loss", "Loss"), ("lr", "Learning rate"))
_HEADLINE = ("status", "command", "seconds", "steps", "examples", "world_size", "findings", "values", "mode")


def _values(material: Material) -> Mapping[str, Any] | None:
    record = material.record
    if record is None:
        return None
    rows = list(record.steps())
    charts = [
        (title, _words(title, drawn), _note(drawn), drawn)
        for name, title in _DRAWN
        if (drawn := _drawn(rows, name))
    ]
    ends = _ends(record)
    return {"charts": charts, "ends": ends, "size": chart} if charts or ends else None


def _drawn(rows: Sequence[Mapping[str, Any]], name: str) -> chart.Chart | None:
    points = [
        (row["step"], row[name])
        for row in rows
        if isinstance(row.get(name), int | float) and isinstance(row["step"], int)
    ]
    return chart.chart(points)


def _words(title: str, drawn: chart.Chart) -> str:
    """The drawing for those who cannot see it."""
    return (
        f"{title} by step: between {number(drawn.smallest)} and {number(drawn.largest)}, "
        f"{number(drawn.last)} at the end. {_note(drawn)}".rstrip()
    )


def _note(drawn: chart.Chart) -> str:
    if drawn.first_not_finite is None:
        return ""
    first = number(drawn.first_not_finite)
    if drawn.num_not_finite == 1:
        return f"It is not a finite number in step {first}."
    return f"It is not a finite number in {number(drawn.num_not_finite)} of the steps, first in step {first}."


def _ends(record: Record) -> list[tuple[str, str]]:
    result = record.result or {}
    values = result.get("values")
    ends = {**values} if isinstance(values, dict) else {}
    ends |= {name: value for name, value in result.items() if name not in _HEADLINE}
    return [(label(name), told(value)) for name, value in ends.items() if value not in (None, "", [], {}, 0)]


SECTION = Section(name="training", title="The training", values=_values)
