"""Memory not pinned: batches that cannot be copied to a device while it computes."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence


def memory_not_pinned(evidence: Evidence) -> Iterator[Finding]:
    """A training loader without pinned memory, for a device that has memory of its own."""
    for cell, facts in evidence.measured():
        if facts.loading is not None and facts.loading.is_pinned is False and not facts.is_on_host:
            where = f" ({facts.loading.where})" if facts.loading.where else ""
            yield Finding(
                cause="memory-not-pinned",
                message=f"The training loader{where} does not pin its memory: copies of batches to "
                f"{facts.devices[0]} cannot run beside computation.",
                evidence={"gpus": cell.gpus, "batch_size": cell.batch_size, "where": facts.loading.where},
                fix="make the loader with pin_memory=True, and copy with .to(device, non_blocking=True)",
            )
            return
