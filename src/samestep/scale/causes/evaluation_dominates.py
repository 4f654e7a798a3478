"""Evaluation dominates: an epoch's time is not mostly training."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import DOMINATES, Evidence, on_gpus, told_s


def evaluation_dominates(evidence: Evidence) -> Iterator[Finding]:
    """Evaluation takes much of an epoch; more so on more GPUs if only one rank does it."""
    found = [
        (cell.evaluation_s / cell.epoch_s, cell)
        for cell, _ in evidence.measured()
        if cell.evaluation_s and cell.epoch_s and cell.evaluation_s >= DOMINATES * cell.epoch_s
    ]
    if not found:
        return
    share, cell = max(found, key=lambda each: each[0])
    assert cell.evaluation_s is not None and cell.epoch_s is not None, "it was asked above"
    yield Finding(
        cause="evaluation-dominates",
        message=f"{on_gpus(cell.cell)} evaluation takes {told_s(cell.evaluation_s)} of an epoch of "
        f"{told_s(cell.epoch_s)} ({share:.0%}); faster steps do not shorten it.",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": cell.evaluation_s, "share": share,
        },
        fix="evaluate on all ranks (each a part, metrics merged), less often, or on fewer examples",
    )  # fmt: skip
