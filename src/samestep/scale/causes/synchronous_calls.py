"""Synchronous calls: the host waits for the device in the middle of a step."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, on_gpus


def synchronous_calls(evidence: Evidence) -> Iterator[Finding]:
    """Calls such as `.item()` in every step, on a device that would run behind the host."""
    found = [
        (facts.waits_per_step, cell)
        for cell, facts in evidence.measured()
        if facts.waits_per_step is not None and facts.waits_per_step >= 1 and not facts.is_on_host
    ]
    if not found:
        return
    waits, cell = max(found, key=lambda each: each[0])
    yield Finding(
        cause="synchronous-calls",
        message=f"{on_gpus(cell.cell)} the program waits for the device {waits:.3g} times a step (`.item()`, "
        "`.cpu()`, printing a tensor): the device is idle until the host has caught up.",
        evidence={"gpus": cell.gpus, "batch_size": cell.batch_size, "waits_per_step": waits},
        fix="keep losses and metrics as tensors on the device, and read them every hundred steps or once an "
        "epoch",
    )
