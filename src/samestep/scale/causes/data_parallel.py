"""DataParallel: one process that drives all GPUs."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence


def data_parallel(evidence: Evidence) -> Iterator[Finding]:
    """A model in torch.nn.DataParallel, which copies it to every GPU in every step."""
    for cell, facts in evidence.measured():
        if "DataParallel" in facts.wraps:
            yield Finding(
                cause="data-parallel",
                message="The model is wrapped in DataParallel: one process copies it to every GPU in every "
                "step, gathers all outputs on the first, and runs Python for all of them in turn.",
                evidence={"gpus": cell.gpus, "batch_size": cell.batch_size, "wraps": list(facts.wraps)},
                fix="use one process for each GPU: DistributedDataParallel, or samestep train",
            )
            return
