"""Checkpoint dominates: an epoch's time is mostly saving."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import DOMINATES, Evidence, on_gpus, told_s


def checkpoint_dominates(evidence: Evidence) -> Iterator[Finding]:
    """Checkpoints take much of an epoch."""
    found = [
        (cell.checkpoint_s / cell.epoch_s, cell)
        for cell, _ in evidence.measured()
        if cell.checkpoint_s and cell.epoch_s and cell.checkpoint_s >= DOMINATES * cell.epoch_s
    ]
    if not found:
        return
    share, cell = max(found, key=lambda each: each[0])
    assert cell.checkpoint_s is not None and cell.epoch_s is not None, "it was asked above"
    yield Finding(
        cause="checkpoint-dominates",
        message=f"{on_gpus(cell.cell)} checkpoints take {told_s(cell.checkpoint_s)} of an epoch of "
        f"{told_s(cell.epoch_s)} ({share:.0%}); all ranks wait meanwhile.",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": cell.checkpoint_s, "share": share,
        },
        fix="save less often, on one rank only, to a faster disk, or in the background as samestep train "
        "does",
    )  # fmt: skip
