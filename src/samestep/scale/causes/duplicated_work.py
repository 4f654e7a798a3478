"""Duplicated work: every rank trains on the whole data set, so that more GPUs only do the same more often."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, on_gpus
from samestep.scale.looks import TWICE, times_in_a_step

_OF_A_SET = (
    "share the data set out with a DistributedSampler (made after the process group), or with samestep's "
    "loader, which does so for any sampler"
)
_OF_A_STREAM = (
    "let each rank keep its part of the stream (of N ranks every N-th example, from its rank on), or use "
    "samestep's loader, which does so"
)


def duplicated_work(evidence: Evidence) -> Iterator[Finding]:
    """A pass that N ranks draw N times, or steps in which they have the same examples.

    Throughput rises, and the epoch is no shorter.
    """
    for comparison in evidence.comparisons:
        cell = comparison.cell
        one, many = evidence.facts(comparison.reference), evidence.facts(cell)
        if cell.gpus == 1 or one is None or many is None or one.loading is None or many.loading is None:
            continue
        due, drawn = one.loading.num_drawn, many.loading.num_drawn
        times = times_in_a_step(evidence.looks.get(1), evidence.looks.get(cell.gpus))
        if due and drawn is not None and drawn >= TWICE * due:
            what = (
                f"the ranks draw {drawn:,} examples in a pass over {due:,}: each example is trained on "
                f"{drawn / due:.3g} times."
            )
        elif times is not None and times >= TWICE:
            what = f"the ranks train on the same examples: each one of a step is in it {times:.3g} times."
        else:
            continue
        yield Finding(
            cause="duplicated-work",
            message=f"{on_gpus(cell)} {what} Examples per second count the same ones again.",
            evidence={
                "gpus": cell.gpus, "batch_size": cell.batch_size, "drawn": drawn, "due": due,
                "times_in_a_step": times, "where": many.loading.where,
            },
            fix=_OF_A_STREAM if many.loading.num_examples is None else _OF_A_SET,
        )  # fmt: skip
        return
