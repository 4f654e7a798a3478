"""What a benchmark says: rows with a requirement or without, as a table and as JSON."""

from dataclasses import asdict, dataclass
from typing import Literal

from rich.table import Table

from benchmarks.measure import Estimate, Rounds

Unit = Literal["of their throughput", "µs added a step", "s", "MB"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure; `required` is the worst value that is good enough, `ours` and `theirs` are what it is made of."""

    what: str
    ours: str
    theirs: str
    figure: Estimate
    unit: Unit
    required: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the requirement holds; None without one."""
        if self.required is None:
            return None
        higher_is_better = self.unit == "of their throughput"
        return self.figure.value >= self.required if higher_is_better else self.figure.value <= self.required

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "met": self.met}


def throughput_row(what: str, rounds: Rounds, *, required: float | None = None, note: str = "") -> Row:
    return _row(what, rounds, rounds.throughput(), "of their throughput", required, note)


def added_row(what: str, rounds: Rounds, *, required: float | None = None, note: str = "") -> Row:
    return _row(what, rounds, rounds.added_s().scaled(1e6), "µs added a step", required, note)


def _row(what: str, rounds: Rounds, figure: Estimate, unit: Unit, required: float | None, note: str) -> Row:
    ours, theirs = (f"{seconds * 1e3:.2f} ms" for seconds in (rounds.our_step_s, rounds.their_step_s))
    return Row(what=what, ours=ours, theirs=theirs, figure=figure, unit=unit, required=required, note=note)


def table(title: str, rows: list[Row]) -> Table:
    """The rows for people."""
    result = Table(title=title, title_justify="left", caption_justify="left")
    result.caption = "\n".join(f"{row.what}: {row.note}" for row in rows if row.note)
    for name in ("", "Samestep", "by hand", "figure", "95 % interval", "required", "met"):
        result.add_column(name, justify="left" if not name else "right")
    for row in rows:
        digits = 3 if row.unit == "of their throughput" else 1
        sign = "≥" if row.unit == "of their throughput" else "<"
        result.add_row(
            row.what,
            row.ours,
            row.theirs,
            f"{row.figure.value:.{digits}f} {row.unit}",
            f"{row.figure.low:.{digits}f} … {row.figure.high:.{digits}f}",
            "" if row.required is None else f"{sign} {row.required:g}",
            {None: "", True: "yes", False: "NO"}[row.met],
        )
    return result
