"""Evaluation dominates: an epoch's time is not mostly training."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, on_gpus, told_s


def evaluation_dominates(evidence: Evidence) -> Iterator[Finding]:
    """Evaluation takes much of an epoch; more so on more GPUs if only one rank does it."""
    found = evidence.dominating(lambda cell: cell.evaluation_s)
    if found is None:
        return
    share, seconds, cell = found
    assert cell.epoch_s is not None, "a share of it is known"
    yield Finding(
        cause="evaluation-dominates",
        message=f"{on_gpus(cell.cell)} evaluation takes {told_s(seconds)} of an epoch of "
        f"{told_s(cell.epoch_s)} ({share:.0%}); faster steps do not shorten it.",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": seconds, "share": share,
        },
        fix="evaluate on all ranks (each a part, metrics merged), less often, or on fewer examples",
    )  # fmt: skip
