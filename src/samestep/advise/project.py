"""Project: measured cells → rows for more GPUs, with intervals that cover what they say.

    rows = project([{"gpus": 1, "batch_per_gpu": 32, "step_s": 0.21}, …], to=64)

Knows no files, no queue and no price. From one world size alone nothing is projected.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from samestep.advise import remarks
from samestep.advise.batches import WAYS, Way, of_one_batch, quickest, single, telling, turns_of, way_of
from samestep.advise.calibration import Calibration, shipped
from samestep.advise.cells import MOST_GPUS, Cell, checked, places_of
from samestep.advise.named import cells_of
from samestep.advise.next_cell import NextCell, candidates_for, next_cell
from samestep.advise.nodes import Node, node_of
from samestep.advise.places import Places
from samestep.advise.rows import MeasuredRow, Row
from samestep.advise.unmeasured import Basis, unmeasured
from samestep.errors import ConfigError
from samestep.findings import Finding


class Projection(list[Row]):
    """The rows in order of GPUs, what is to be said of them, and the cell that would settle most."""

    def __init__(self, rows: Iterable[Row], findings: Sequence[Finding], cell: NextCell | None) -> None:
        super().__init__(rows)
        self.findings = list(findings)
        self.next_cell = cell


def project(
    cells: Iterable[Cell | Mapping[str, Any]],
    to: int | Sequence[int],
    *,
    batch: Way | None = None,
    gpus_per_node: int | None = None,
    level: float = 0.8,
    calibration: Calibration | None = None,
) -> Projection:
    """Rows for the worlds asked for: those given, or every doubling up to one number.

    None for those that would have less than one example for each GPU.
    `batch`: the global batch stays the "same", or "grows" with the GPUs; by default what the cells did.
    """
    found = cells_of(cells)
    node = node_of(found, gpus_per_node)
    measured = checked(found, node)
    if not 0 < level <= 0.95:
        raise ConfigError(f"level is {level}, but must be above 0 and at most 0.95")
    if batch is not None and batch not in WAYS:
        raise ConfigError(f"batch is {batch!r}, but must be one of {', '.join(map(repr, WAYS))}")
    asked = _asked(to)
    calibration = calibration or shipped()
    way = batch or way_of(measured)
    of_batch = of_one_batch(measured, way)
    shown = quickest(of_batch)
    one = single(measured, shown)

    def at(worlds: Sequence[int]) -> Places:
        reference = shown[-1]
        share = [reference.batch_size / n if way == "same" else reference.batch_per_gpu
                 for n in worlds]  # fmt: skip
        return Places.of(
            worlds, [node.num_for(n) for n in worlds], share, turns_of(measured, reference, share)
        )

    # with less than an example for each GPU there is nothing to measure, or to ask for
    batch_size = shown[-1].batch_size
    idle = [n for n in sorted({*asked, *(cell.gpus for cell in shown)}) if way == "same" and n > batch_size]
    asked, shown = [n for n in asked if n not in idle], [cell for cell in shown if cell.gpus not in idle]
    if not shown:
        return Projection([], remarks.of_idle(idle, batch_size), None)
    findings = [
        *remarks.of_cells(shown, has_single=one is not None),
        *remarks.of_placements(of_batch, shown),
        *remarks.of_idle(idle, batch_size),
    ]
    over = None if one is None else _measured_row(one)
    rows: list[Row] = [_measured_row(cell) for cell in shown]
    cell = _next_cell(measured, at, asked, node, calibration)
    if len({cell.gpus for cell in measured}) == 1:
        said = [*findings, *remarks.of_one_world(measured[0], cell)]
        return Projection(_with_speedups(rows, over), said, cell)
    known = {cell.gpus for cell in shown}
    if new := [n for n in asked if n not in known]:
        basis = Basis(
            cells=measured,
            telling=telling(measured, of_batch, way),
            of_batch=of_batch,
            full_node=at([node.gpus]),
            calibration=calibration,
        )
        projected, of_host = unmeasured(basis, at(new), level)
        findings += [*of_host, *remarks.of_ranges(projected, cell)]
        rows += projected
    return Projection(_with_speedups(sorted(rows, key=lambda row: row.gpus), over), findings, cell)


def _next_cell(
    cells: Sequence[Cell],
    at: Callable[[Sequence[int]], Places],
    asked: Sequence[int],
    node: Node,
    calibration: Calibration,
) -> NextCell | None:
    """What to measure to know most about the most GPUs that are asked about."""
    places, step_s = places_of(cells)
    most = max(asked, default=cells[-1].gpus)
    if len({cell.gpus for cell in cells}) == 1 and most <= cells[-1].gpus:  # nothing else is asked about
        most = 2 * cells[-1].gpus
    worlds = candidates_for(places, at([most]), node.gpus, asked)
    if not worlds:
        return None
    found = next_cell(calibration.learnt.experience, places, step_s, at(worlds), at([most]))
    if found is None:
        return None
    return replace(
        found,
        takes_s=found.takes_s if all(cell.is_in_seconds for cell in cells) else None,
        is_batch_known=all(cell.is_batch_known for cell in cells),
    )


def _with_speedups(rows: Sequence[Row], one: MeasuredRow | None) -> list[Row]:
    if one is None:
        return list(rows)
    found = []
    for row in rows:
        speedup, low, high = row.speedup_over(row if row == one else one)
        found.append(replace(row, speedup=speedup, speedup_low=low, speedup_high=high))
    return found


def _measured_row(cell: Cell) -> MeasuredRow:
    return MeasuredRow(
        gpus=cell.gpus,
        nodes=cell.num_nodes,
        batch_per_gpu=cell.batch_per_gpu,
        turns=cell.accumulate,
        step_s=cell.step_s,
        low_s=min(cell.step_low_s or cell.step_s, cell.step_s),
        high_s=max(cell.step_high_s or cell.step_s, cell.step_s),
        speedup_around=cell.speedup_around,
        is_batch_known=cell.is_batch_known,
        is_in_seconds=cell.is_in_seconds,
    )


def _asked(to: int | Sequence[int]) -> list[int]:
    is_one = not isinstance(to, Iterable)  # a number of numpy's too
    worlds: list[Any] = list(to) if isinstance(to, Iterable) else [to]
    for world in worlds:
        is_number = isinstance(world, Real) and not isinstance(world, bool)
        if not is_number or not 1 <= world <= MOST_GPUS or world != int(world):
            raise ConfigError(f"{world} GPUs were asked for, but 1 to {MOST_GPUS} can be")
    if not worlds:
        raise ConfigError("no number of GPUs was asked for: give at least one")
    doublings = [2**power for power in range(17) if 2**power < worlds[0]] if is_one else []
    return sorted({*doublings, *map(int, worlds)})
