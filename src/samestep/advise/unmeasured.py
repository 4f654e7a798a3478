"""Unmeasured: rows of places that nobody measured.

Laws make an `Estimate`, parts move it, cells that are not sure blur it, and a host that is full raises it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from samestep.advise.calibration import Calibration
from samestep.advise.cells import Cell, places_of
from samestep.advise.competition import Competition, Outlook
from samestep.advise.estimate import Estimate
from samestep.advise.host import FULL, host_findings, host_s
from samestep.advise.parts import half_way, projected_parts
from samestep.advise.places import Floats, Places
from samestep.advise.ranges import why_far, why_in_vain
from samestep.advise.rows import ProjectedRow
from samestep.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Basis:
    """What a projection rests on."""

    cells: Sequence[Cell]
    telling: Sequence[Cell]
    """Those that laws and parts are fitted to."""
    of_batch: Sequence[Cell]
    """Those of the batch that is asked about."""
    full_node: Places
    """One place, with that batch."""
    calibration: Calibration

    def outlook(self, at: Places) -> Outlook:
        """What laws say."""
        competition = Competition(
            *places_of(self.telling),
            at,
            gpus_per_node=int(self.full_node.gpus[0]),
            is_in_seconds=all(cell.is_in_seconds for cell in self.cells),
        )
        return competition.outlook(self.calibration.learnt)


def unmeasured(basis: Basis, asked: Places, level: float) -> tuple[list[ProjectedRow], list[Finding]]:
    """A row a place, and what is to be said of the host."""
    needed_s = host_s(basis.cells, asked)
    estimate, parts_s = _without_host(basis, asked, level, needed_s)
    with_cores_s, findings = np.exp(estimate.log_s), []
    if needed_s is not None:
        findings = host_findings(asked, with_cores_s, needed_s)
        # all cores busy all the time is the least that a step can take, and ranks wait for cores before that;
        # the low end stays, since ranks that wait for something else keep cores busy too
        estimate = estimate.raised(np.log(needed_s), np.log(needed_s / FULL))
    step_s, low_s, high_s = np.exp(estimate.log_s), np.exp(estimate.low), np.exp(estimate.high)
    rows = []
    for index in range(len(asked)):
        far, in_vain = why_far(basis.cells, asked[[index]]), why_in_vain(basis.of_batch, asked[[index]])
        rows.append(
            ProjectedRow(
                gpus=int(asked.gpus[index]),
                nodes=int(asked.nodes[index]),
                batch_per_gpu=float(asked.batch_per_gpu[index]),
                turns=float(asked.turns[index]),
                step_s=float(step_s[index]),
                low_s=float(low_s[index]),
                high_s=float(high_s[index]),
                is_batch_known=all(cell.is_batch_known for cell in basis.cells),
                is_in_seconds=all(cell.is_in_seconds for cell in basis.cells),
                level=level,
                is_range=bool(far or in_vain),
                because=far or in_vain,
                is_in_vain=bool(in_vain and not far),
                with_cores_s=float(with_cores_s[index]) if step_s[index] > with_cores_s[index] else None,
                parts_s=parts_s[index],
            )
        )
    return rows, findings


def _without_host(
    basis: Basis, asked: Places, level: float, needed_s: Floats | None
) -> tuple[Estimate, list[dict[str, float]]]:
    """By laws and parts, no surer than cells are; and each place's parts, where they are known."""
    outlook = basis.outlook(asked)
    is_host_fine = False if needed_s is None else needed_s < FULL * np.exp(outlook.log_s)
    interval = basis.calibration.interval(outlook, level, is_host_fine=is_host_fine)
    estimate = Estimate(outlook.log_s, *interval)
    parts = projected_parts(basis.telling, asked) or {}
    if parts:
        estimate = estimate.moved(_by_parts(basis, asked, outlook, parts), least=outlook.least_log_s)
    deviation = max(cell.relative_deviation for cell in basis.telling)
    estimate = estimate.blurred(NormalDist().inv_cdf((1 + level) / 2) * deviation)
    told = [
        {} if is_crossing else {name: float(seconds[index]) for name, seconds in parts.items()}
        for index, is_crossing in enumerate(outlook.is_crossing)
    ]
    return estimate, told


def _by_parts(basis: Basis, asked: Places, outlook: Outlook, parts: dict[str, Floats]) -> Floats:
    """How far parts move what laws say; of links between nodes that nobody measured, they know nothing.

    There they move it as far as in a full node, so that a second node does not make up for what the first one
    lost; not at all if that was measured, since laws know it then.
    """
    moved = half_way(basis.telling, asked, parts, outlook.log_s)
    is_crossing = outlook.is_crossing == 1
    if not is_crossing.any():
        return moved
    full = basis.full_node
    if any(cell.gpus == full.gpus[0] and cell.num_nodes == 1 for cell in basis.telling):
        return np.where(is_crossing, 0.0, moved)
    inside = projected_parts(basis.telling, full)
    assert inside is not None, "parts are known of these cells"
    return np.where(is_crossing, half_way(basis.telling, full, inside, basis.outlook(full).log_s), moved)
