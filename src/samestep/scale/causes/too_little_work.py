"""Too little work per GPU: a step on a part of the batch does not take that part of the time."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, cost_of, on_gpus, others, told_s
from samestep.scale.gap import SMALLER_BATCH


def too_little_work(evidence: Evidence) -> Iterator[Finding]:
    """Fixed costs of a step that each GPU pays whatever its share; and from which batch on N GPUs pay."""
    found = evidence.costly(SMALLER_BATCH)
    if not found:
        return
    worst = found[0]
    cell = worst.gap.cell
    alone = evidence.variant(cell, "alone")
    assert alone is not None, "a gap that is told apart has a run of one rank alone"
    seconds = evidence.estimates.value(alone)
    batches, pays = pays_from(evidence, cell.gpus)
    told, fix = _advice(cell.gpus, batches, pays)
    yield Finding(
        cause="too-little-work-per-gpu",
        message=f"{on_gpus(cell)} each GPU has {cell.largest_share} examples. One rank alone takes "
        f"{told_s(seconds)} for them, and {told_s(seconds - worst.part.seconds)} would be in proportion: so "
        f"small a share is slower for each example, which costs {cost_of(worst)}.{told}",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": worst.part.seconds,
            "share": worst.share, "alone_s": seconds, "pays_from_batch": pays, "batches": batches,
            "cells": others(found),
        },
        fix=fix,
    )  # fmt: skip


def _advice(gpus: int, batches: list[int], pays: int | None) -> tuple[str, str]:
    """What the batches that were measured say of so many GPUs, and what to do."""
    if len(batches) < 2:
        return "", (
            "use fewer GPUs, or a larger batch if the training allows it; --batch with several tells from "
            "which batch on more GPUs pay"
        )
    measured = ", ".join(map(str, batches))
    if pays is None:
        return (
            f" At no batch that was measured ({measured}) are {gpus} GPUs surely faster than one.",
            f"use fewer GPUs, or a batch above {batches[-1]} if the training allows it",
        )
    if pays == batches[0]:
        return (
            f" {gpus} GPUs are faster than one at every batch that was measured ({measured}).",
            "use a larger batch if the training allows it (that is other training), or fewer GPUs",
        )
    return (
        f" From a batch of {pays} on, {gpus} GPUs are faster than one.",
        f"use a batch of {pays} or more if the training allows it (that is other training), or fewer GPUs",
    )


def pays_from(evidence: Evidence, gpus: int) -> tuple[list[int], int | None]:
    """The batches measured on so many GPUs, and the least from which on all are faster than one GPU.

    Faster is a speedup whose whole interval is above 1.
    """
    cells = sorted(
        (c for c in evidence.result.cells if c.gpus == gpus and c.speedup_low), key=lambda c: c.batch_size
    )
    pays = None
    for cell in reversed(cells):
        if not cell.speedup_low or cell.speedup_low <= 1.0:
            break
        pays = cell.batch_size
    return [cell.batch_size for cell in cells], pays
