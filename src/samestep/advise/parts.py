"""Parts: where a sweep told the gap's parts apart, each is projected by its own law.

With N GPUs on k nodes, g of them in each:

    smaller batch             1 − m/M                       a fixed cost of every step, m examples for M
    sharing the host          g − 1                         ranks of a node share its cores
    input pipeline            g − 1
    waiting for the slowest   log2 N                        the largest of N draws
    synchronised norms        log2 N                        small messages: latency alone
    exchange not hidden       (g−1)/g, g−1, (k−1)/k, k−1    a ring inside each node, one between

Parts of a cell add up to what its step takes longer than ideal. No law is known of parts that save time, so
those that take it are made smaller until they add up to as much alone. Public tables do not have parts, so
this law has no record there.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from samestep.advise.cells import Cell, places_of
from samestep.advise.places import Floats, Places

Terms = Callable[[Places, float], list[Floats]]

_TERMS: dict[str, Terms] = {
    "smaller batch": lambda at, most: [1.0 - at.batch_per_gpu / most],
    "sharing the host": lambda at, most: [at.gpus_per_node - 1],
    "input pipeline": lambda at, most: [at.gpus_per_node - 1],
    "waiting for the slowest": lambda at, most: [np.log2(at.gpus)],
    "synchronised norms": lambda at, most: [np.log2(at.gpus)],
    "exchange not hidden": lambda at, most: [
        (at.gpus_per_node - 1) / at.gpus_per_node,
        at.gpus_per_node - 1,
        (at.nodes - 1) / at.nodes,
        at.nodes - 1,
    ],
}


def projected_parts(cells: Sequence[Cell], asked: Places) -> dict[str, Floats] | None:
    """Seconds of each part at the places asked for.

    None if a cell of several GPUs has no parts, or some that this module has no law for, or if no cell has
    one GPU.
    """
    several = [cell for cell in cells if cell.gpus > 1]
    ones = [cell for cell in cells if cell.gpus == 1]
    names = {name for cell in several for name in cell.parts_s}
    if not several or not ones or not names or not names <= set(_TERMS):
        return None
    if not all(cell.parts_s for cell in several):
        return None
    # here: loading scipy takes longer than most of what imports this package
    from scipy.optimize import nnls

    at, _ = places_of(several)
    taking = [_taking(cell.parts_s) for cell in several]
    most = max(float(at.batch_per_gpu.max()), *(cell.batch_per_gpu for cell in ones))
    found = {}
    for name in sorted(names):
        matrix = np.stack(_TERMS[name](at, most), axis=1)
        seconds = np.array([parts.get(name, 0.0) for parts in taking])
        # columns of one size: of terms that explain a single cell equally well, the first is taken
        size = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(np.float64).tiny)
        numbers, _ = nnls(matrix / size, seconds)
        found[name] = np.stack(_TERMS[name](asked, most), axis=1) @ (numbers / size)
    return found


def _taking(parts_s: Mapping[str, float]) -> dict[str, float]:
    taking = {name: seconds for name, seconds in parts_s.items() if seconds > 0}
    total_s, gap_s = sum(taking.values()), max(sum(parts_s.values()), 0.0)
    return {name: seconds * gap_s / total_s for name, seconds in taking.items()}


def half_way(cells: Sequence[Cell], asked: Places, parts: Mapping[str, Floats], log_s: Floats) -> Floats:
    """How far what laws say moves to meet the parts: these know causes, laws have a record elsewhere."""
    one = next(cell for cell in cells if cell.gpus == 1)
    step_s = one.gpu_s_per_example * asked.batch_per_gpu + sum(parts.values())
    return np.asarray((np.log(step_s) - log_s) / 2)
