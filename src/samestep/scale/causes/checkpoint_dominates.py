"""Checkpoint dominates: an epoch's time is mostly saving."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, on_gpus, told_s


def checkpoint_dominates(evidence: Evidence) -> Iterator[Finding]:
    """Checkpoints take much of an epoch."""
    found = evidence.dominating(lambda cell: cell.checkpoint_s)
    if found is None:
        return
    share, seconds, cell = found
    assert cell.epoch_s is not None, "a share of it is known"
    yield Finding(
        cause="checkpoint-dominates",
        message=f"{on_gpus(cell.cell)} checkpoints take {told_s(seconds)} of an epoch of "
        f"{told_s(cell.epoch_s)} ({share:.0%}); all ranks wait meanwhile.",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": seconds, "share": share,
        },
        fix="save less often, on one rank only, to a faster disk, or in the background as samestep train "
        "does",
    )  # fmt: skip
