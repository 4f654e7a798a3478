"""Batches: which cells have one batch, and what becomes of it with more GPUs. Knows no laws."""

import math
from collections.abc import Sequence
from typing import Literal

from samestep.advise.cells import Cell

Way = Literal["same", "grows"]
"""What becomes of the global batch with more GPUs."""
WAYS: tuple[Way, ...] = ("same", "grows")
_ROUNDED = 0.05
"""Of a share: so much at most is lost where it is told as a whole number."""


def other(way: Way) -> Way:
    return "grows" if way == "same" else "same"


def way_of(cells: Sequence[Cell]) -> Way:
    """What became of the batch in most cells; of equally many, the same training."""
    most = {way: len(_most(cells, way)) for way in WAYS}
    return "grows" if most["grows"] > most["same"] or len(cells) == 1 else "same"


def of_one_batch(cells: Sequence[Cell], way: Way) -> list[Cell]:
    """Those whose batch most cells have; where the other way was measured, that of the fewest GPUs."""
    measured = way_of(cells)
    if way == measured:
        return _most(cells, way)
    now = _most(cells, measured)[0]
    return _with_batch(cells, way, now.batch_size if way == "same" else now.batch_per_gpu)


def _most(cells: Sequence[Cell], way: Way) -> list[Cell]:
    """The largest batch of those that most cells have.

    Where no two have the same, it is that of the fewest GPUs: the training that somebody has now.
    """
    batches = {cell.batch_size if way == "same" else cell.batch_per_gpu for cell in cells}
    groups = [_with_batch(cells, way, batch) for batch in sorted(batches)]
    if max(map(len, groups)) == 1:
        return min(groups, key=lambda group: (group[0].gpus, -group[0].batch_size))
    return max(reversed(groups), key=len)


def _with_batch(cells: Sequence[Cell], way: Way, batch: float) -> list[Cell]:
    return [cell for cell in cells if _has_batch(cell, way, batch)]


def telling(cells: Sequence[Cell], of_batch: Sequence[Cell], way: Way) -> list[Cell]:
    """Those that laws are fitted to: of one batch per GPU, where it grows and these reach as far as any.

    What more GPUs do to one batch is known from many other jobs, what another batch does from few: there a
    cell of another one would only make the answer less sure.
    """
    worlds, turns = {cell.gpus for cell in of_batch}, {cell.accumulate for cell in of_batch}
    is_enough = way == "grows" and len(worlds) > 1 and len(turns) == 1 and _span(of_batch) == _span(cells)
    return list(of_batch if is_enough else cells)


def _span(cells: Sequence[Cell]) -> tuple[int, int, int]:
    gpus = [cell.gpus for cell in cells]
    return min(gpus), max(gpus), max(cell.num_nodes for cell in cells)


def quickest(cells: Sequence[Cell]) -> list[Cell]:
    """Of each number of GPUs the nodes on which it was quickest: it is a number that is asked for."""
    best: dict[int, Cell] = {}
    for cell in cells:
        if cell.gpus not in best or cell.gpu_s_per_example < best[cell.gpus].gpu_s_per_example:
            best[cell.gpus] = cell
    return [best[gpus] for gpus in sorted(best)]


def _has_batch(cell: Cell, way: Way, batch: float) -> bool:
    """Whether that is what stays; a share may be told as a whole number: 21 of 64 on 3 GPUs."""
    if way == "grows":
        return math.isclose(cell.batch_per_gpu, batch, rel_tol=1e-6)
    share = batch / cell.gpus
    off = abs(cell.batch_per_gpu - share)
    is_rounded = cell.batch_per_gpu == round(cell.batch_per_gpu) and off < 1 and off < _ROUNDED * share
    return math.isclose(cell.batch_per_gpu, share, rel_tol=1e-6) or is_rounded


def turns_of(cells: Sequence[Cell], reference: Cell, batch_per_gpu: Sequence[float]) -> list[float]:
    """As many as all cells have; if these differ, of as many examples as those of the reference."""
    if len({cell.accumulate for cell in cells}) == 1:
        return [float(reference.accumulate)] * len(batch_per_gpu)
    at_once = reference.batch_per_gpu / reference.accumulate
    return [max(batch / at_once, 1.0) for batch in batch_per_gpu]


def single(cells: Sequence[Cell], shown: Sequence[Cell]) -> Cell | None:
    """The cell of one GPU that speedups are over: of the batch shown if there is one, else of the largest."""
    ones = [cell for cell in shown if cell.gpus == 1] or [cell for cell in cells if cell.gpus == 1]
    return max(ones, key=lambda cell: cell.batch_per_gpu, default=None)
