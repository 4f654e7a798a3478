"""What the speed costs in training: loss against examples, steps and time, all numbers of GPUs together."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from samestep.report import plot
from samestep.report.figures import gpus, seconds
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.sweep import CurveRow, Sweep
from samestep.report.wording import counted, number

MOST_LINES = 6
MOST_FAMILIES = 6
_AXES = (("examples", 1), ("steps", 0), ("seconds", 2))
"""What loss is drawn against, and its place in a point."""
_LOSS = 3
_TENTH = 10


def _values(material: Material) -> Mapping[str, Any] | None:
    sweep = material.sweep
    if sweep is None:
        return None
    found: dict[float, list[CurveRow]] = {}
    for curve in sorted(sweep.curves, key=lambda curve: (sweep.family(curve), curve.gpus)):
        found.setdefault(sweep.family(curve), []).append(curve)
    families = [_family(sweep, curves[:MOST_LINES]) for curves in found.values()]
    shown = [family for family in families if family is not None]
    if not shown:
        return None
    return {
        "families": shown[:MOST_FAMILIES],
        "num_hidden": max(0, len(shown) - MOST_FAMILIES),
        "size": plot,
    }


def _family(sweep: Sweep, curves: Sequence[CurveRow]) -> Mapping[str, Any] | None:
    drawn = [(title, plot.plot([_line(curve, at) for curve in curves], x_least=0.0)) for title, at in _AXES]
    pictures = [(title, picture) for title, picture in drawn if picture is not None]
    if not pictures:
        return None
    first = curves[0]
    common = f"batch {first.batch_size}"
    return {
        "title": f"{number(first.batch_size / first.gpus)} examples a GPU" if sweep.is_weak else common,
        "names": [gpus(curve.gpus) for curve in curves],
        "pictures": pictures,
        "ends": _ends(curves),
    }


def _line(curve: CurveRow, at: int) -> list[tuple[float, float]]:
    return [(_number(point[at]), _number(point[_LOSS])) for point in curve.points]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _ends(curves: Sequence[CurveRow]) -> Mapping[str, Any]:
    """The loss of each curve at the last place that all of them reach."""
    titles, columns = [], []
    for title, at in _AXES:
        lines = [[p for p in _line(curve, at) if all(map(math.isfinite, p))] for curve in curves]
        if all(lines):
            reached = min(line[-1][0] for line in lines)
            titles.append(_after(title, reached))
            columns.append([_loss_before(line, reached) for line in lines])
    rows = [(gpus(curve.gpus), [column[i] for column in columns]) for i, curve in enumerate(curves)]
    return {"titles": titles, "rows": rows}


def _after(title: str, reached: float) -> str:
    if title == "seconds":
        return f"after {seconds(reached)}"
    return f"after {counted(round(reached), title.removesuffix('s'))}"


def _loss_before(line: Sequence[tuple[float, float]], reached: float) -> str:
    """The mean over the last tenth of what leads there: single losses scatter."""
    values = [y for x, y in line if x <= reached] or [line[0][1]]
    last = values[-max(1, len(values) // _TENTH) :]
    return number(float(f"{sum(last) / len(last):.4g}"))


SECTION = Section(name="learning", title="What it costs in training", short="Loss", values=_values)
