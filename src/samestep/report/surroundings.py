"""Surroundings: what the runs of a verdict ran with, as the probe saw it on the first rank of each.

Reads no further than to the first forward pass. A run that cannot be read is passed over.
"""

from collections.abc import Iterator
from itertools import islice

from samestep.errors import RecordError
from samestep.observations import Observations
from samestep.observed import Group, Machine, Start
from samestep.report.material import Material

_MOST_ROWS = 1000

Surroundings = tuple[Start, Machine | None, Group | None]


def surroundings(material: Material) -> Iterator[Surroundings]:
    """Of each run that left observations below the folder of the material, in order."""
    runs = material.verification.runs if material.verification is not None else ()
    # a name with a path in it could lead anywhere
    for folder in [material.folder / run.name for run in runs if _is_name(run.name)]:
        try:
            rows = list(islice(_first_rows(Observations.read(folder)), _MOST_ROWS))
        except (RecordError, OSError, ValueError):
            continue
        start = next((row for row in rows if isinstance(row, Start)), None)
        if start is not None:
            machine = next((row for row in rows if isinstance(row, Machine)), None)
            yield start, machine, next((row for row in rows if isinstance(row, Group)), None)


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def _first_rows(observations: Observations) -> Iterator[object]:
    for row in observations.rows(observations.ranks[0]):
        yield row
        if isinstance(row, Machine):
            return
