"""Origins: which job on which machine cells are of, and whether they may be put together.

Cells of other jobs or machines are refused: a law through them would be of nothing. What is not said cannot
differ: a device of unknown model goes with any of its kind. What differs beside that is a finding.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from samestep.errors import ConfigError, listed
from samestep.findings import Finding

if TYPE_CHECKING:
    from samestep.advise.cells import Cell


def check_one_origin(cells: Sequence["Cell"]) -> None:
    """Refuse cells of several jobs or machines, and say which are of which."""
    _check("job", {cell.job for cell in cells}, cells)
    machines = {cell.machine for cell in cells}
    _check("machine", {name for name in machines if not _is_kind_of(name, machines)}, cells)


def _check(what: str, names: Iterable[str], cells: Sequence["Cell"]) -> None:
    told = sorted(names)
    if len(told) < 2:
        return
    of_each = [f"{name or 'one without a name'}: {_worlds(what, name, cells)}" for name in told]
    how = "name it in every line of the table" if "" in told else f"give those of one {what} at a time"
    raise ConfigError(
        f"these cells are of {len(told)} {what}s ({'; '.join(of_each)}), but a projection is of one: {how}"
    )


def _worlds(what: str, name: str, cells: Sequence["Cell"]) -> str:
    worlds = sorted({cell.gpus for cell in cells if getattr(cell, what) == name})
    return f"{listed([str(world) for world in worlds])} GPU{'s' * (worlds != [1])}"


def _is_kind_of(name: str, machines: Iterable[str]) -> bool:
    """Whether it is a kind of device alone, and another name has a model of that kind."""
    return name != "" and any(other.startswith(f"{name} ") for other in machines)


def of_conditions(cells: Iterable["Cell"]) -> list[Finding]:
    """What was not alike when they were measured, though job and machine are."""
    values: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        for name, value in cell.conditions.items():
            values[name].add(value)
    unlike = {name: sorted(found) for name, found in values.items() if len(found) > 1}
    if not unlike:
        return []
    told = "; ".join(f"{name}: {listed(found)}" for name, found in unlike.items())
    return [
        Finding(
            cause="not-measured-alike",
            message=f"These cells were not all measured alike ({told}). What that changes in their times "
            "counts as if the number of GPUs had done it.",
            evidence={name: list(found) for name, found in unlike.items()},
            fix="Measure all numbers of GPUs in one sweep, or name only folders that are alike.",
        )
    ]
