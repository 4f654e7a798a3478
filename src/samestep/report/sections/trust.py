"""How far to trust a sweep: what makes it worth less, how much was measured, and what more would buy."""

from collections.abc import Mapping
from typing import Any

from samestep.report.faster import widest
from samestep.report.figures import gpus
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.sweep import MarkRow, Sweep
from samestep.report.wording import counted, number

MOST_MARKS = 60


def _values(material: Material) -> Mapping[str, Any] | None:
    sweep = material.sweep
    if sweep is None:
        return None
    # the same reason is often that of many cells
    cells: dict[tuple[str, str, bool], list[str]] = {}
    for mark in sweep.fairness:
        cells.setdefault((mark.mark, mark.reason, mark.is_refusal), []).append(_cell(mark))
    marks = [(*mark, ", ".join(filter(None, where[:8]))) for mark, where in cells.items()]
    return {
        "marks": marks[:MOST_MARKS],
        "num_hidden": max(0, len(marks) - MOST_MARKS),
        "rows": _rows(sweep),
    }


def _cell(mark: MarkRow) -> str:
    if mark.gpus is None:
        return ""
    return f"{gpus(mark.gpus)}" + (f" at batch {mark.batch_size}" if mark.batch_size is not None else "")


def _rows(sweep: Sweep) -> list[tuple[str, str]]:
    rows = [("measured in", counted(sweep.rounds, "round") + ", each with every run once in random order")]
    if (half := widest(sweep)) is not None:
        asked = f"; ±{sweep.precision:.1%} was asked for" if sweep.precision is not None else ""
        rows.append(("widest interval", f"±{half:.1%} of a step{asked}"))
    if sweep.stopped_because:
        rows.append(("stopped because", sweep.stopped_because))
    if sweep.outlook:
        rows.append(("what more buys", sweep.outlook))
    if sweep.threads_per_rank is not None:
        rows.append(("threads a rank", f"{number(sweep.threads_per_rank)}, the same for all"))
    return rows


SECTION = Section(name="trust", title="How far to trust it", short="Trust", values=_values)
