"""The table of quantities × steps, and the first difference in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from samestep.report.material import FirstDifference, Mark, Material, Verification
from samestep.report.section import Section
from samestep.report.wording import exact, number, ranks

MOST_COLUMNS = 40
SYMBOLS: dict[Mark | None, str] = {"same": "=", "equal": "≈", "different": "≠", None: "·"}


@dataclass(frozen=True)
class Column:
    """Neighbouring steps that have the same marks, one for each quantity; mostly it is one step."""

    first: int
    last: int
    marks: tuple[Mark | None, ...]

    @property
    def title(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def columns(
    table: Sequence[tuple[str, int, Mark]], *, lit: int | None
) -> tuple[list[str], list[Column], int]:
    """The quantities, the columns, and how many columns are left out; never that of the step `lit`.

    Steps are joined only where there are more of them than `MOST_COLUMNS`.
    """
    quantities = list(dict.fromkeys(quantity for quantity, _, _ in table))
    marks = {(quantity, step): mark for quantity, step, mark in table}
    found = [
        Column(step, step, tuple(marks.get((quantity, step)) for quantity in quantities))
        for step in sorted({step for _, step, _ in table})
    ]
    if len(found) > MOST_COLUMNS:
        groups = (list(group) for _, group in groupby(found, lambda c: (c.marks, c.first == lit)))
        found = [Column(group[0].first, group[-1].last, group[0].marks) for group in groups]
    at = next((i for i, column in enumerate(found) if column.first == lit), 0)
    start = max(0, min(at - MOST_COLUMNS // 2, len(found) - MOST_COLUMNS))
    shown = found[start : start + MOST_COLUMNS]
    return quantities, shown, len(found) - len(shown)


def is_in_table(verification: Verification) -> bool:
    """Whether the first difference is one of the table's, and not one of the program as it is.

    The table compares N ranks with one rank that was given their batches, so that a difference in who gets
    which examples is not in it.
    """
    first = verification.first_difference
    return first is not None and (first.quantity, first.step, "different") in verification.table


def _values(material: Material) -> Mapping[str, Any] | None:
    verification = material.verification
    if verification is None or not (verification.table or verification.first_difference):
        return None
    first = verification.first_difference
    is_lit = is_in_table(verification)
    quantities, shown, num_hidden = columns(
        verification.table, lit=first.step if first is not None and is_lit else None
    )
    rows = [(quantity, [(c, c.marks[i]) for c in shown]) for i, quantity in enumerate(quantities)]
    return {
        "first": first,
        "facts": _facts(verification, first) if first is not None else [],
        "is_lit": is_lit,
        "columns": shown,
        "is_joined": any(column.first != column.last for column in shown),
        "rows": rows,
        "has_gaps": any(None in column.marks for column in shown),
        "num_hidden": num_hidden,
        "symbols": SYMBOLS,
    }


def _facts(verification: Verification, first: FirstDifference) -> list[tuple[str, str]]:
    several = [size for size in verification.worlds if size > 1]
    more = f"{several[0]} ranks" if len(several) == 1 else "more ranks"
    facts = [("one rank", exact(first.reference)), (more, exact(first.candidate))]
    facts = [(name, value) for name, value in facts if value]
    if first.tolerance == 0:
        facts += [("apart by", number(first.size)), ("allowed", "nothing: it has to be the same exactly")]
    else:
        times = number(float(f"{first.size / first.tolerance:.2g}"))
        facts.append(("apart by", f"{number(first.size)}, {times} times what rounding explains"))
        facts.append(("rounding explains", number(first.tolerance)))
    return [*facts, ("seen on", ranks(first.ranks))] if first.ranks else facts


SECTION = Section(name="steps", title="Step by step", values=_values)
