"""The next cell: which measurement would narrow a projection most, and how long it takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samestep.advise.experience import Experience, forecast
from samestep.advise.places import Floats, Places

NUM_STEPS = 150
"""Of one run: a fifth to warm up, the rest timed."""
_REACH = 4
"""A cell within a node is at most so many times the largest world measured."""


@dataclass(frozen=True, kw_only=True)
class NextCell:
    """A cell to measure."""

    gpus: int
    nodes: int
    batch_per_gpu: float
    takes_s: float | None
    """Of `NUM_STEPS` steps, without start-up; None where nobody knows the time of a step."""
    narrows: float
    """Scale of the forecast for the world asked for with this cell, as a part of that without it."""
    why: str
    is_batch_known: bool = True


def next_cell(
    experience: Experience, places: Places, step_s: Floats, candidates: Places, target: Places
) -> NextCell | None:
    """The candidate that leaves the least variance at the target (one place); None if none helps."""
    allowed = [index for index in range(len(candidates)) if _is_open(places, candidates, index)]
    if not allowed:
        return None
    before = _variance(experience, places, target)
    after = [_variance(experience, places + candidates[[index]], target) for index in allowed]
    # of equally good ones the smallest world
    best = min(range(len(allowed)), key=lambda i: (round(after[i] / before, 3), candidates.gpus[allowed[i]]))
    cell = candidates[[allowed[best]]]
    takes_s = NUM_STEPS * float(np.exp(forecast(experience, places, step_s, cell).log_s[0]))
    return NextCell(
        gpus=int(cell.gpus[0]),
        nodes=int(cell.nodes[0]),
        batch_per_gpu=float(cell.batch_per_gpu[0]),
        takes_s=takes_s,
        narrows=float(np.sqrt(after[best] / before)),
        why=_why(places, cell, target),
    )


def candidates_for(
    places: Places, target: Places, gpus_per_node: int, asked: Sequence[int] = ()
) -> Sequence[int]:
    """World sizes worth measuring for a target, itself the last of them; among them those asked for."""
    most = int(target.gpus[0])
    doublings = [2**power for power in range(most.bit_length()) if 2**power < most]
    seen = {int(gpus) for gpus in places.gpus}
    others = [n for n in (gpus_per_node, 2 * gpus_per_node, *asked) if n < most]
    return sorted({*doublings, *others, most} - seen)


def _is_open(places: Places, candidates: Places, index: int) -> bool:
    """Within reach or, once there are two world sizes, the first world of two nodes; with work for all."""
    gpus, nodes = candidates.gpus[index], candidates.nodes[index]
    share = candidates.batch_per_gpu[index]
    if share < min(1.0, places.batch_per_gpu.min()):
        return False
    if not _is_whole(share) and bool(np.all(_is_whole(places.batch_per_gpu))):
        return False  # who shares evenly cannot measure it
    is_first_of_two = nodes == 2 and places.nodes.max() == 1 and len(set(places.gpus)) > 1
    return bool(gpus <= _REACH * places.gpus.max() or is_first_of_two)


def _is_whole(shares: Floats | float) -> NDArray[np.bool_]:
    return np.asarray(np.isclose(shares, np.round(shares), rtol=0, atol=1e-9))


def _variance(experience: Experience, places: Places, target: Places) -> float:
    """Of the target given the places, up to the width that is common to a job."""
    _, covariance = experience.moments(places + target)
    relative = covariance[1:, 1:] - covariance[1:, :1] - covariance[:1, 1:] + covariance[0, 0]
    if len(places) == 1:
        return float(relative[-1, -1])
    gain = np.linalg.solve(relative[:-1, :-1], relative[:-1, -1])
    return float(relative[-1, -1] - gain @ relative[:-1, -1])


def _why(places: Places, cell: Places, target: Places) -> str:
    most = int(target.gpus[0])
    if len(set(places.gpus)) == 1:
        if cell.gpus[0] == most:
            return "two numbers of GPUs are the least"
        return f"two numbers of GPUs are the least, and of those within reach it tells most about {most}"
    if cell.nodes[0] > 1 and places.nodes.max() == 1:
        return "nothing was measured between nodes yet, and their links are what the projection depends on"
    if cell.gpus[0] == 1:
        return "speedup needs the time of one GPU"
    if cell.gpus[0] >= most:
        return "nothing tells more about so many than to measure them"
    return f"it lies between what was measured and {most} GPUs"
