"""Learning: what a sweep tells of the training itself, from what is kept of its looks and runs.

Loss curves are read again from the rows of the runs, so that a folder without its answer has them, too. Knows
files; judges nothing.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.errors import RecordError
from samestep.observations import Observations
from samestep.observed import Row
from samestep.scale.curves import Curve, curve
from samestep.scale.looks import Look
from samestep.scale.plan import Sweep
from samestep.scale.runs import Finished


def curves_of(sweep: Sweep, runs: Sequence[Finished], folder: Path) -> list[dict[str, Any]]:
    """The loss of each cell that has one, as scale.json has it; `folder` is that of the sweep."""
    return [dataclasses.asdict(found) for found in _curves(sweep, runs, folder) if found.points]


def noise_of(looks: Mapping[int, Look]) -> dict[str, Any] | None:
    """The gradient noise scale, as most ranks tell it; None if nobody can."""
    for size, look in sorted(looks.items(), reverse=True):
        if look.noise is not None and look.noise.value is not None:
            noise = look.noise
            told = {"value": noise.value, "low": noise.low, "high": noise.high}
            return told | {"num_steps": noise.num_steps, "from_gpus": size}
    return None


def _curves(sweep: Sweep, runs: Sequence[Finished], folder: Path) -> Iterator[Curve]:
    for comparison in sweep.comparisons:
        full = comparison.roles(has_norms=False)["full"]
        names = [run.folder for run in runs if run.variant == full and run.is_measured]
        rows = [found for name in names if (found := _rows_in(folder / name)) is not None]
        yield curve(comparison.cell, rows)


def _rows_in(folder: Path) -> dict[int, list[Row]] | None:
    try:
        observations = Observations.read(folder)
    except RecordError:
        return None
    return {rank: list(observations.rows(rank)) for rank in observations.ranks}
