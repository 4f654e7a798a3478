"""Results: tables of figures with their intervals, and where Samestep stands in each row. Draws nothing."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.measure import Estimate

OURS = "samestep"
Better = Literal["more", "less", "right"]
Standing = Literal["first", "level", "behind", ""]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A figure of one library, or its answer; without both it was not found, and `told` says why."""

    told: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    is_right: bool | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One question to all libraries; `better` says which figures are."""

    what: str
    better: Better
    cells: dict[str, Cell]

    def standing(self) -> Standing:
        """Where Samestep is: first, level with the best of the others (intervals overlap), or behind."""
        ours = self.cells.get(OURS)
        others = [cell for name, cell in self.cells.items() if not name.startswith(OURS)]
        if ours is None or not others:
            return ""
        if self.better == "right":
            another_is_right = any(cell.is_right for cell in others)
            if ours.is_right:
                return "level" if another_is_right else "first"
            return "behind" if another_is_right else "level"
        known = [cell for cell in others if cell.value is not None]
        if ours.value is None or not known:
            return ""
        sign = 1 if self.better == "more" else -1
        best = max(known, key=lambda cell: sign * (cell.value or 0.0))
        if _overlap(ours, best):
            return "level"
        return "first" if sign * ours.value > sign * (best.value or 0.0) else "behind"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows about one thing; `about` says how it was measured."""

    name: str
    title: str
    about: str
    rows: list[Row] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Table":
        rows = [
            Row(
                what=row["what"],
                better=row["better"],
                cells={name: Cell(**cell) for name, cell in row["cells"].items()},
            )
            for row in found["rows"]
        ]
        return cls(name=found["name"], title=found["title"], about=found["about"], rows=rows)


def measured(figure: Estimate, *, digits: int, unit: str = "", told: str | None = None) -> Cell:
    """A figure with its interval."""
    interval = f" ({figure.low:,.{digits}f} … {figure.high:,.{digits}f})"
    text = f"{figure.value:,.{digits}f}{interval}{unit}" if told is None else told
    return Cell(told=text, value=figure.value, low=figure.low, high=figure.high)


def missing(why: str) -> Cell:
    return Cell(told=f"not measured: {why[:90]}")


def _overlap(one: Cell, other: Cell) -> bool:
    ends = [(cell.value if end is None else end) for cell in (one, other) for end in (cell.low, cell.high)]
    low, high, other_low, other_high = ends
    assert low is not None and high is not None and other_low is not None and other_high is not None
    return low <= other_high and other_low <= high
