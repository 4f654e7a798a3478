"""Exchange-bound: gradients take longer to travel than the backward pass can hide."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, cost_of, on_gpus, others, told_bytes
from samestep.scale.gap import EXCHANGE

ONE_BUCKET = 1 << 20
"""Bytes of DDP's first bucket: gradients that fit into it are one message, and it is not bytes that cost."""
_FEWER_BYTES = (
    "send less: gradients in bfloat16 (half the bytes of float32), or several batches for one update "
    "(accumulation; other training); try other bucket sizes (bucket_cap_mb); or give each GPU more work"
)
_FEWER_MESSAGES = (
    "so few bytes take no time: it is each message, and ranks that meet for it; give each GPU more work for "
    "each exchange (a larger batch, or several batches for one update: other training), or use fewer GPUs"
)


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
        fix=_FEWER_MESSAGES if 0 < size <= ONE_BUCKET else _FEWER_BYTES,
    )  # fmt: skip
