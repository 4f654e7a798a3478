"""How busy the machine was while each number of GPUs was measured, all rounds one after another."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from samestep.report import plot
from samestep.report.chart import Point
from samestep.report.figures import gpus
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.sweep_runs import FullRun, Sample, full_runs, samples_of
from samestep.report.wording import number

MOST_CELLS = 12
BREAK_S = 0.25
"""Between two runs; they were not made one after the other."""


def _values(material: Material) -> Mapping[str, Any] | None:
    if material.sweep is None:
        return None
    found = full_runs(material.folder)
    courses = [(cell, *joined_up(runs)) for cell, runs in list(found.items())[:MOST_CELLS]]
    cores = [(cell, "cores", _cores(course), begins) for cell, course, begins in courses]
    devices = [(cell, "GPUs", _devices(course), begins) for cell, course, begins in courses]
    # one scale for all, so that pictures can be compared
    heights = [y for _, _, lines, _ in cores for _, line in lines for _, y in line if math.isfinite(y)]
    most = {"cores": max(heights, default=1.0), "GPUs": 100.0}
    pictures = []
    for cell, title, lines, begins in [*cores, *devices]:
        drawn = plot.plot([line for _, line in lines], y_least=0.0, y_most=most[title], rules=begins[1:])
        if drawn is not None:
            means = [(name, _mean(line)) for name, line in lines]
            pictures.append((f"{gpus(cell.gpus)}, batch {cell.batch_size}", title, drawn, means))
    if not pictures:
        return None
    return {
        "pictures": pictures,
        "size": plot,
        "num_hidden": max(0, len(found) - MOST_CELLS),
    }


def joined_up(runs: Sequence[FullRun]) -> tuple[list[tuple[float, Sample | None]], list[float]]:
    """Samples of runs as one course of seconds, with None between two runs; and where each run begins."""
    course: list[tuple[float, Sample | None]] = []
    begins: list[float] = []
    at_s = 0.0
    for run in runs:
        samples = samples_of(run)
        if not samples:
            continue
        begins.append(at_s)
        course += [(at_s + sample.at_s - samples[0].at_s, sample) for sample in samples]
        course.append((course[-1][0] + BREAK_S / 2, None))
        at_s = course[-2][0] + BREAK_S
    return course, begins


def _cores(course: Sequence[tuple[float, Sample | None]]) -> list[tuple[str, list[Point]]]:
    lines = [
        ("the ranks", [(at_s, _number(s.own_cores if s else None)) for at_s, s in course]),
        ("the whole machine", [(at_s, _number(s.busy_cores if s else None)) for at_s, s in course]),
    ]
    return [line for line in lines if any(math.isfinite(y) for _, y in line[1])]


def _devices(course: Sequence[tuple[float, Sample | None]]) -> list[tuple[str, list[Point]]]:
    known = [(at_s, [v for v in (s.gpu or ()) if v is not None] if s else []) for at_s, s in course]
    if not any(values for _, values in known):
        return []
    mean = [(at_s, 100 * sum(v) / len(v) if v else math.nan) for at_s, v in known]
    least = [(at_s, 100 * min(v) if v else math.nan) for at_s, v in known]
    has_several = any(len(values) > 1 for _, values in known)
    return [("the mean of all", mean), ("the least busy", least)] if has_several else [("the GPU", mean)]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(line: Sequence[Point]) -> str:
    values = [y for _, y in line if math.isfinite(y)]
    return number(float(f"{sum(values) / len(values):.3g}"))


SECTION = Section(name="utilisation", title="How busy the machine was", short="Utilisation", values=_values)
