"""Duplicated work: every rank trains on the whole data set, so that more GPUs only do the same more often."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, on_gpus

TWICE = 1.5
"""Times the examples that a pass has on one rank, from which on they are drawn twice; padding adds fewer."""


def duplicated_work(evidence: Evidence) -> Iterator[Finding]:
    """A pass that N ranks draw N times: throughput rises, and the epoch is no shorter."""
    for comparison in evidence.comparisons:
        cell = comparison.cell
        one, many = evidence.facts(comparison.reference), evidence.facts(cell)
        if cell.gpus == 1 or one is None or many is None or one.loading is None or many.loading is None:
            continue
        due, drawn = one.loading.num_drawn, many.loading.num_drawn
        if not due or drawn is None or drawn < TWICE * due:
            continue
        yield Finding(
            cause="duplicated-work",
            message=f"{on_gpus(cell)} the ranks draw {drawn:,} examples in a pass over {due:,}: each "
            f"example is trained on {drawn / due:.3g} times. Examples per second count "
            "the same ones again.",
            evidence={
                "gpus": cell.gpus, "batch_size": cell.batch_size, "drawn": drawn, "due": due,
                "where": many.loading.where,
            },
            fix="share the data set out with a DistributedSampler (made after the process group), or with "
            "samestep's loader, which does so for any sampler",
        )  # fmt: skip
        return
