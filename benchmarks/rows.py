"""What a benchmark says: rows with a requirement or without, as a table and as JSON."""

from dataclasses import asdict, dataclass
from typing import Literal

from rich.table import Table

from benchmarks.measure import Estimate, Rounds


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of both sides and, where they were measured side by side, the figure that compares them.

    `required` is the worst figure that is good enough.
    """

    what: str
    unit: Literal["ms", "s", "MB"]
    ours: float
    theirs: float | None
    figure: Estimate | None = None
    figure_unit: Literal["of their throughput", "µs added a step", "of a cold start", "steps"] | None = None
    required: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the requirement holds; None without one."""
        if self.required is None or self.figure is None:
            return None
        return (self.figure.value >= self.required) == self._more_is_better

    @property
    def _more_is_better(self) -> bool:
        return self.figure_unit == "of their throughput"

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "met": self.met}

    def cells(self) -> list[str]:
        """The row for people."""
        digits = 1 if self.figure_unit == "µs added a step" else 3
        value = interval = required = ""
        if self.figure is not None:
            value = f"{self.figure.value:.{digits}f} {self.figure_unit}"
            interval = f"{self.figure.low:.{digits}f} … {self.figure.high:.{digits}f}"
        if self.required is not None:
            required = f"{'at least' if self._more_is_better else 'below'} {self.required:.3g}"
        sides = ["" if side is None else f"{side:.4g} {self.unit}" for side in (self.ours, self.theirs)]
        return [self.what, *sides, value, interval, required, {None: "", True: "yes", False: "NO"}[self.met]]


def throughput_row(what: str, rounds: Rounds, *, required: float | None = None, note: str = "") -> Row:
    """Our throughput as a part of theirs."""
    figure = rounds.throughput()
    return Row(
        what=what, unit="ms", ours=rounds.our_step_s * 1e3, theirs=rounds.their_step_s * 1e3,
        figure=figure, figure_unit="of their throughput", required=required, note=note,
    )  # fmt: skip


def added_row(what: str, rounds: Rounds, *, required: float | None = None, note: str = "") -> Row:
    """The time that a step of ours takes more than one of theirs."""
    figure = rounds.added_s().scaled(1e6)
    return Row(
        what=what, unit="ms", ours=rounds.our_step_s * 1e3, theirs=rounds.their_step_s * 1e3,
        figure=figure, figure_unit="µs added a step", required=required, note=note,
    )  # fmt: skip


def table(title: str, rows: list[Row]) -> Table:
    """The rows for people."""
    result = Table(title=title, title_justify="left", caption_justify="left")
    result.caption = "\n".join(f"{row.what}: {row.note}" for row in rows if row.note)
    for name in ("", "Samestep", "by hand", "figure", "95 % interval", "required", "met"):
        result.add_column(name, justify="right" if name else "left")
    for row in rows:
        result.add_row(*row.cells())
    return result
