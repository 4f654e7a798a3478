"""Host: whether the cores of a node keep up with more ranks on it, which times do not say beforehand."""

from collections.abc import Sequence

import numpy as np

from samestep.advise.cells import Cell
from samestep.advise.places import Floats, Places
from samestep.advise.words import gpus as told_gpus
from samestep.advise.words import percent
from samestep.findings import Finding

FULL = 0.85
"""Of all cores: from here on, ranks wait for cores."""


def host_s(cells: Sequence[Cell], asked: Places) -> Floats | None:
    """The step of a node whose cores do nothing else; None if no cell uses them.

    What an example costs of the node's cores is that of the cell with most ranks a node, and of these the one
    with most examples each, since ranks that wait keep cores busy too. No measured step is below it.
    """
    known = [cell for cell in cells if cell.cpu_utilisation]
    if not known:
        return None
    busiest = max(known, key=lambda cell: (cell.gpus / cell.num_nodes, cell.batch_per_gpu))
    assert busiest.cpu_utilisation is not None
    per_node = busiest.batch_size / busiest.num_nodes
    quickest = min(cell.step_s * cell.num_nodes / cell.batch_size for cell in cells)
    node_s_per_example = min(busiest.cpu_utilisation * busiest.step_s / per_node, quickest)
    return np.asarray(node_s_per_example * asked.gpus_per_node * asked.batch_per_gpu)


def host_findings(asked: Places, step_s: Floats, needed_s: Floats) -> list[Finding]:
    """The smallest world whose host is full, if there is one."""
    use = needed_s / step_s
    full = [index for index in np.argsort(asked.gpus, kind="stable") if use[index] >= FULL]
    if not full:
        return []
    gpus, share = int(asked.gpus[full[0]]), float(use[full[0]])
    return [
        Finding(
            cause="host-saturates",
            message=(
                f"From {told_gpus(gpus)} on, the host's cores are the limit: ranks would need "
                f"{percent(share)} of them, and steps may become longer than GPUs and links alone make them."
            ),
            evidence={"gpus": gpus, "cpu_utilisation": share, "full": FULL},
            fix="Ask for more cores per GPU, or make the work on the CPU less.",
        )
    ]
