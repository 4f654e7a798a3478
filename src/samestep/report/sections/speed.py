"""How fast each number of GPUs is: the table of all cells, and speedup against ideal."""

from collections.abc import Callable, Mapping
from typing import Any

from samestep.report.figures import Unit, percent, seconds, times
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.speedup import speedup
from samestep.report.sweep import CellRow, Sweep
from samestep.report.wording import number
from samestep.scale.evidence import told_bytes

MOST_CELLS = 60
MOST_FAMILIES = 6
"""Lines that can be told apart in one picture."""
NO_VALUE = "–"


def _step(cell: CellRow) -> str:
    if cell.step_s is None:
        return ""
    unit = Unit.of(cell.step_s)
    if cell.step_low_s is None or cell.step_high_s is None:
        return unit.told(cell.step_s)
    return f"{unit.told(cell.step_s)} ({unit.range(cell.step_low_s, cell.step_high_s)})"


def _speedup(cell: CellRow) -> str:
    if cell.speedup is None:
        return ""
    low, high = cell.speedup_low, cell.speedup_high
    around = (
        f" ({times(low)}–{times(high)})" if low is not None and high is not None and cell.gpus > 1 else ""
    )
    return f"{times(cell.speedup)}{around}"


def _told(value: float | None, tell: Callable[[float], str]) -> str:
    return "" if value is None else tell(value)


_COLUMNS: tuple[tuple[str, Callable[[CellRow], str]], ...] = (
    ("batch per GPU", lambda cell: number(cell.batch_per_gpu)),
    ("step (95 %)", _step),
    ("examples/s", lambda cell: _told(cell.examples_per_s, lambda v: number(float(f"{v:.4g}")))),
    ("speedup (95 %)", _speedup),
    ("ideal", lambda cell: f"{cell.ideal_speedup:g}"),
    ("efficiency", lambda cell: _told(cell.efficiency, percent)),
    ("epoch", lambda cell: _told(cell.epoch_s, seconds)),
    ("CPU", lambda cell: _told(cell.cpu_utilisation, percent)),
    ("GPU", lambda cell: _told(cell.gpu_utilisation, percent)),
    ("memory a rank", lambda cell: _told(cell.memory_bytes, told_bytes)),
    ("energy a step", lambda cell: _told(cell.energy_j, lambda v: f"{v:.3g} J")),
)


def _values(material: Material) -> Mapping[str, Any] | None:
    sweep = material.sweep
    if sweep is None:
        return None
    cells = [cell for family in sweep.families() for cell in family]
    shown = cells[:MOST_CELLS]
    families = sweep.families()[:MOST_FAMILIES]
    # a column that no cell has a value for tells nothing
    columns = [(title, tell) for title, tell in _COLUMNS if any(tell(cell) for cell in shown)]
    drawn = speedup(families)
    return {
        "titles": [title for title, _ in columns],
        "rows": [(cell, [tell(cell) or NO_VALUE for _, tell in columns], _note(cell)) for cell in shown],
        "has_batches": len({cell.batch_size for cell in cells}) > 1,
        "num_hidden": len(cells) - len(shown),
        "is_weak": sweep.is_weak,
        "drawn": drawn,
        "names": [_name(sweep, family[0]) for family in families],
        "words": _words(families) if drawn else "",
        "num_hidden_lines": len(sweep.families()) - len(families),
    }


def _name(sweep: Sweep, cell: CellRow) -> str:
    return (
        f"{number(cell.batch_per_gpu)} examples a GPU"
        if sweep.is_weak
        else f"batch {number(cell.batch_size)}"
    )


def _note(cell: CellRow) -> str:
    marked = f"marked: {', '.join(cell.marks)}" if cell.marks else ""
    status = "" if cell.status == "measured" else cell.status
    return "; ".join(filter(None, (f"{status}: {cell.reason}" if cell.reason else status, marked)))


def _words(families: list[list[CellRow]]) -> str:
    told = [
        f"{cell.gpus} GPUs at batch {cell.batch_size} {_speedup(cell)} of {cell.ideal_speedup:g}"
        for family in families
        for cell in family
        if cell.speedup is not None and cell.gpus > 1
    ]
    return f"Speedup over one GPU, with intervals: {'; '.join(told)}."


SECTION = Section(name="speed", title="How fast", short="Speed", values=_values)
