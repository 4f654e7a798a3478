"""Input-bound: the model waits for examples."""

import math
from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import MATTERS, Evidence, on_gpus, told_s
from samestep.scale.variants import Cell


def input_bound(evidence: Evidence) -> Iterator[Finding]:
    """Steps that are faster when examples need not be fetched; also on one GPU."""
    found = [(cost / whole, cost, whole, cell) for cell, cost, whole in _costs(evidence)]
    if not found:
        return
    share, cost, whole, cell = max(found, key=lambda each: each[:2])
    facts, cores = evidence.facts(cell), evidence.num_cores(cell)
    workers = facts.loading.num_workers if facts is not None and facts.loading is not None else 0
    needed = _workers_needed(workers, cost, whole)
    most = None if cores is None else cores // cell.gpus
    yield Finding(
        cause="input-bound",
        message=f"{on_gpus(cell)} a step takes {told_s(whole)} with its examples fetched by "
        f"{_told_workers(workers)} a rank, and {told_s(whole - cost)} with examples that are there already: "
        f"{share:.0%} of the time is waiting for input.",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": cost, "share": share,
            "num_workers": workers, "workers_needed": needed, "num_cores": cores,
            "cells": [{"gpus": c.gpus, "batch_size": c.batch_size, "share": s} for s, _, _, c in found],
        },
        fix=_fix(needed, None if _waits(evidence, cell, cost) else most, cell.gpus, cores),
    )  # fmt: skip


def _waits(evidence: Evidence, cell: Cell, cost: float) -> bool:
    """Whether fetching is waiting, for a disk say, and hardly computes: cores then do not limit workers.

    Told of a rank that fetches by itself, by the processor time of its whole step; beside other work a rank
    waits for cores, too.
    """
    facts, result = evidence.facts(cell), evidence.result.cell(cell)
    if facts is None or facts.loading is None or facts.loading.num_workers or result is None:
        return False
    return "busy" not in result.marks and facts.cpu_s / cell.gpus < cost / 2


def _costs(evidence: Evidence) -> Iterator[tuple[Cell, float, float]]:
    """Cells in which input costs enough to matter: seconds of a step, and the step."""
    for comparison in evidence.comparisons:
        cell, is_one = comparison.cell, comparison.cell.gpus == 1
        real = evidence.variant(cell, "full" if is_one else "silent")
        cached = evidence.variant(cell, "alone-full" if is_one else "cached")
        result = evidence.result.cell(cell)
        look = evidence.looks.get(cell.gpus)
        is_loaded = look is None or look.is_loaded
        if real is None or cached is None or result is None or not result.step_s or not is_loaded:
            continue
        if evidence.estimates.has(real) and evidence.estimates.has(cached):
            value, draws = evidence.estimates.value, evidence.estimates.draws
            cost = value(real, "mean") - value(cached, "mean")
            apart = draws(real, "mean") - draws(cached, "mean")
            around = evidence.estimates.around_difference(apart, cost, result.step_s)
            if around.low > 0 and cost >= MATTERS * result.step_s:
                yield cell, min(cost, result.step_s), result.step_s


def _workers_needed(workers: int, cost: float, whole: float) -> int:
    """So many that fetching keeps up: w workers take as long as a step does now, so w · whole / rest keep up.

    Without workers a batch is fetched in `cost`, while the model waits.
    """
    rest = max(whole - cost, whole / 100)
    return math.ceil(workers * whole / rest) if workers else max(1, math.ceil(cost / rest))


def _told_workers(count: int) -> str:
    return f"{count} loader worker{'s' * (count != 1)}"


def _fix(needed: int, most: int | None, gpus: int, cores: int | None) -> str:
    if most is not None and needed > most:
        ranks = f"{gpus} rank{'s' * (gpus != 1)}"
        return (
            f"about {needed} loader workers a rank would keep up, and {cores} cores for {ranks} allow "
            f"{most}: make examples cheaper to fetch (cache them decoded, smaller files, lighter "
            "augmentation), or use a machine with more cores for each GPU"
        )
    return (
        f"set num_workers to about {needed} in the training loader (of a task or of world.loader: workers), "
        "or cache decoded examples"
    )
