"""Unsynchronised clock: times that a program takes of itself while its device is still at work."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence


def unsynchronised_clock(evidence: Evidence) -> Iterator[Finding]:
    """A clock that is read in most steps, on a device that runs behind the host, without waiting for it."""
    # a value that is read from the device waits for it as well
    waiting = {cell.gpus for cell, facts in evidence.measured() if (facts.waits_per_step or 0.0) >= 1}
    found = [
        (look.num_clock_steps / look.num_seen, look)
        for size, look in evidence.looks.items()
        if look.num_seen and look.device and not look.device.startswith("cpu") and size not in waiting
    ]
    share, look = max(found, key=lambda each: each[0], default=(0.0, None))
    if look is None or share <= 0.5:
        return
    yield Finding(
        cause="unsynchronised-clock",
        message=f"On {look.world_size} rank{'s' * (look.world_size > 1)}, the program reads a clock in "
        f"{look.num_clock_steps} of {look.num_seen} steps and does not wait for {look.device} before: it "
        "times how fast work is handed over, not how fast it is done. Speed that it prints is not speed.",
        evidence={"gpus": look.world_size, "num_steps": look.num_clock_steps, "of": look.num_seen},
        fix="call torch.cuda.synchronize() before the clock is read, every hundred steps or so, or measure "
        "with samestep scale",
    )
