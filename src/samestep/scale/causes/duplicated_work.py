"""Duplicated work: every rank trains on the whole data set, so that more GPUs only do the same more often."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, on_gpus
from samestep.scale.fairness import TWICE


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
        times = _times_in_a_step(evidence, cell.gpus)
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
            fix="share the data set out with a DistributedSampler (made after the process group), or with "
            "samestep's loader, which does so for any sampler",
        )  # fmt: skip
        return


def _times_in_a_step(evidence: Evidence, gpus: int) -> float | None:
    """How often an example is in a step, for each time that it is in one of one rank; None if not known."""
    one, many = (evidence.looks.get(size) for size in (1, gpus))
    if one is None or many is None or not one.repeats or many.repeats is None:
        return None
    return many.repeats / one.repeats
