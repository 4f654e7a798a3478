"""Project: measured cells → rows for more GPUs, with intervals that cover what they say.

    rows = project([{"gpus": 1, "batch_per_gpu": 32, "step_s": 0.21}, …], to=64)

Knows no files, no queue and no price. From one world size alone nothing is projected.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from statistics import NormalDist
from typing import Any

import numpy as np

from samestep.advise import remarks
from samestep.advise.batches import WAYS, Way, of_one_batch, quickest, single, turns_of, way_of
from samestep.advise.calibration import Calibration, shipped
from samestep.advise.cells import MOST_GPUS, Cell, checked, places_of
from samestep.advise.competition import FARTHEST, Competition, Outlook
from samestep.advise.host import FULL, host_findings, host_s
from samestep.advise.named import cells_of
from samestep.advise.next_cell import NextCell, candidates_for, next_cell
from samestep.advise.nodes import node_of
from samestep.advise.parts import projected_parts, step_from_parts
from samestep.advise.places import Places
from samestep.advise.rows import MeasuredRow, ProjectedRow, Row
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
    known = {cell.gpus for cell in shown}
    one = single(measured, shown)

    def at(worlds: Sequence[int]) -> Places:
        reference = shown[-1]
        share = [reference.batch_size / n if way == "same" else reference.batch_per_gpu
                 for n in worlds]  # fmt: skip
        return Places.of(
            worlds, [node.num_for(n) for n in worlds], share, turns_of(measured, reference, share)
        )

    places, step_s = places_of(measured)
    findings = [
        *remarks.of_cells(shown, has_single=one is not None),
        *remarks.of_placements(of_batch, shown),
    ]
    # as many GPUs as there is an example for; what has less is no place to measure, or to ask for
    target = at([max((n for n in asked if at([n]).batch_per_gpu[0] >= 1), default=asked[-1])])
    is_one_world = len({cell.gpus for cell in measured}) == 1
    if is_one_world and target.gpus[0] <= measured[-1].gpus:  # nothing else is asked about
        target = at([2 * measured[-1].gpus])
    worlds = candidates_for(places, target, node.gpus, asked)
    cell = next_cell(calibration.learnt.experience, places, step_s, at(worlds), target) if worlds else None
    over = None if one is None else _measured_row(one)
    rows: list[Row] = [_measured_row(cell) for cell in shown]
    new = [n for n in asked if n not in known]
    if is_one_world:
        said = [*findings, *remarks.of_one_world(measured[0], cell)]
        return Projection(_with_speedups(rows, over), said, cell)
    if new:
        projected, more = _projected(measured, at(new), at([node.gpus]), calibration, level)
        findings += more
        if any(row.is_range for row in projected):
            findings += remarks.of_range(cell)
        rows += projected
    return Projection(_with_speedups(sorted(rows, key=lambda row: row.gpus), over), findings, cell)


def _projected(
    cells: Sequence[Cell],
    asked: Places,
    full_node: Places,
    calibration: Calibration,
    level: float,
) -> tuple[list[ProjectedRow], list[Finding]]:
    places, step_s = places_of(cells)

    def outlook_of(at: Places) -> Outlook:
        competition = Competition(
            places,
            step_s,
            at,
            gpus_per_node=int(full_node.gpus[0]),
            is_in_seconds=all(cell.is_in_seconds for cell in cells),
        )
        return competition.outlook(calibration.learnt)

    outlook = outlook_of(asked)
    needed_s = host_s(cells, asked)
    is_fine = False if needed_s is None else needed_s < FULL * np.exp(outlook.log_s)
    low, high = calibration.interval(outlook, level, is_host_fine=is_fine)
    log_s, below, above = outlook.log_s, outlook.log_s - low, high - outlook.log_s
    parts = projected_parts(cells, asked)
    is_told = outlook.is_crossing == 0
    if parts is not None:
        # half of each: the parts know the causes, the laws have a record on public series
        shift = (np.log(step_from_parts(cells, asked, parts)) - log_s) / 2
        if not is_told.all():
            # of links between nodes that nobody measured, parts know nothing: those of a full node go on
            inside = projected_parts(cells, full_node)
            assert inside is not None
            in_full_node = np.log(step_from_parts(cells, full_node, inside)) - outlook_of(full_node).log_s
            shift = np.where(is_told, shift, in_full_node / 2)
        log_s, below, above = log_s + shift, below + np.maximum(shift, 0), above + np.maximum(-shift, 0)
    noise = NormalDist().inv_cdf((1 + level) / 2) * max(cell.relative_deviation for cell in cells)
    below, above = np.hypot(below, noise), np.hypot(above, noise)
    step, low_s, high_s = np.exp(log_s), np.exp(log_s - below), np.exp(log_s + above)
    findings = []
    with_cores = step
    if needed_s is not None:
        findings = host_findings(asked, step, needed_s)
        # all cores busy all the time is the least that a step can take; ranks wait for cores before that
        step, low_s = np.maximum(step, needed_s), np.maximum(low_s, needed_s)
        high_s = np.maximum(high_s, np.where(step > with_cores, needed_s / FULL, 0.0))
    rows = []
    for index in range(len(asked)):
        because = remarks.why_range(cells, asked[[index]], FARTHEST)
        rows.append(
            ProjectedRow(
                gpus=int(asked.gpus[index]),
                nodes=int(asked.nodes[index]),
                batch_per_gpu=float(asked.batch_per_gpu[index]),
                step_s=float(step[index]),
                low_s=float(low_s[index]),
                high_s=float(high_s[index]),
                level=level,
                is_range=bool(because),
                because=because,
                with_cores_s=float(with_cores[index]) if step[index] > with_cores[index] else None,
                parts_s={name: float(part[index]) for name, part in (parts or {}).items() if is_told[index]},
            )
        )
    return rows, findings


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
        step_s=cell.step_s,
        low_s=min(cell.step_low_s or cell.step_s, cell.step_s),
        high_s=max(cell.step_high_s or cell.step_s, cell.step_s),
        speedup_around=cell.speedup_around,
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
