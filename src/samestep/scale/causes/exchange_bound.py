"""Exchange-bound: gradients take longer to travel than the backward pass can hide."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, cost_of, on_gpus, others, told_bytes
from samestep.scale.gap import EXCHANGE


def exchange_bound(evidence: Evidence) -> Iterator[Finding]:
    """Steps that are faster without the exchange of gradients."""
    found = evidence.costly(EXCHANGE)
    if not found:
        return
    worst = found[0]
    cell = worst.gap.cell
    facts = evidence.facts(cell)
    size = 0 if facts is None else facts.gradient_bytes
    told = f", {told_bytes(size)} a step," if size else ""
    yield Finding(
        cause="exchange-bound",
        message=f"{on_gpus(cell)} the exchange of gradients{told} is not hidden behind the backward pass: "
        f"steps without it are shorter by {cost_of(worst)}.",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": worst.part.seconds,
            "share": worst.share, "gradient_bytes": size, "cells": others(found),
        },
        fix="send less: gradients in bfloat16 (half the bytes of float32), or several batches for one update "
        "(accumulation; other training); try other bucket sizes (bucket_cap_mb); or give each GPU more work",
    )  # fmt: skip
