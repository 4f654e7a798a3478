"""Norm-bound: layers that wait for the statistics of all ranks, in the middle of forward and backward."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, cost_of, on_gpus, others
from samestep.scale.gap import NORMS


def norm_bound(evidence: Evidence) -> Iterator[Finding]:
    """Steps that are faster with norm layers that see their own rank only."""
    found = evidence.costly(NORMS)
    if not found:
        return
    worst = found[0]
    cell = worst.gap.cell
    facts = evidence.facts(cell)
    count = 0 if facts is None else facts.num_synchronised_norms
    yield Finding(
        cause="norm-bound",
        message=f"{on_gpus(cell)} {_layers(count)} for all ranks on the way forward and back: that costs "
        f"{cost_of(worst)}.",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": worst.part.seconds,
            "share": worst.share, "num_norms": count, "cells": others(found),
        },
        fix="use norms that need no other examples (group or layer norm), or leave them local if each GPU "
        "has examples enough for its statistics; both are other training",
    )  # fmt: skip


def _layers(count: int) -> str:
    if count == 1:
        return "a synchronised norm layer waits"
    return f"{count or 'the'} synchronised norm layers wait"
