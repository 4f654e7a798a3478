"""Ranges: where nothing that was measured tells enough to ask for so many GPUs. Knows no laws."""

from collections.abc import Sequence

from samestep.advise.cells import Cell
from samestep.advise.competition import FARTHEST
from samestep.advise.places import Places
from samestep.advise.words import examples as told_examples

GAIN = 1.1
"""Times the examples a second: worlds that gained less gained nothing that is sure."""


def why_far(cells: Sequence[Cell], asked: Places) -> str:
    """What makes one place too far from those measured; empty if it is not."""
    most = max(cell.gpus for cell in cells)
    least = min(cell.batch_per_gpu / cell.accumulate for cell in cells)
    if asked.at_once[0] * FARTHEST < least * (1 - 1e-9):
        share = told_examples(float(f"{asked.at_once[0]:.3g}"))
        return f"{share} a GPU, and {least:g} are the fewest that were measured"
    if asked.nodes[0] > 1 and all(cell.num_nodes == 1 for cell in cells):
        return f"{int(asked.nodes[0])} nodes, and only one was measured"
    if asked.gpus[0] > FARTHEST * most:
        return f"more than {FARTHEST} times the {most} GPUs that were measured"
    return ""


def why_in_vain(cells: Sequence[Cell], asked: Places) -> str:
    """That more GPUs, or twice as many, gained hardly anything with one batch; empty if they did.

    Where the largest worlds gained nothing, none is known that does: laws say that some will, and those who
    measured a full host, or a slow disk, would wait for it in vain. Twice as many of one kind of place:
    between nodes it may be otherwise than within one.
    """
    if asked.gpus[0] <= max(cell.gpus for cell in cells):
        return ""
    if not _is_gained(cells, cells[0].gpus):
        return f"up to {max(cell.gpus for cell in cells)}, more GPUs gained nothing"
    alike = [cell for cell in cells if (cell.num_nodes > 1) == (asked.nodes[0] > 1)]
    most = max((cell.gpus for cell in alike), default=0)
    half = max((cell.gpus for cell in alike if 2 * cell.gpus <= most), default=None)
    if half is None or _is_gained(alike, half):
        return ""
    return f"from {half} GPUs to {most}, hardly anything was gained"


def _is_gained(cells: Sequence[Cell], least: int) -> bool:
    """Whether more than so many GPUs did more than these, or fewer; also where there are none."""
    best = max(cell.examples_per_s for cell in cells if cell.gpus <= least)
    more = [cell.examples_per_s for cell in cells if cell.gpus > least]
    return not more or max(more) >= GAIN * best
