"""Short epoch: a data set of a few steps, whose beginning and end cost as much as its middle."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, on_gpus

FEWEST_STEPS = 20


def short_epoch(evidence: Evidence) -> Iterator[Finding]:
    """An epoch of a few steps only: there is little for more GPUs to take over."""
    found = [
        (cell.steps_per_epoch, cell, facts)
        for cell, facts in evidence.measured()
        if cell.gpus > 1 and cell.steps_per_epoch is not None and cell.steps_per_epoch < FEWEST_STEPS
    ]
    if not found:
        return
    steps, cell, facts = min(found, key=lambda each: each[0])
    examples = facts.loading.num_examples if facts.loading is not None else None
    told = f"{examples:,}" if examples is not None else f"about {steps * cell.batch_size:,}"
    yield Finding(
        cause="short-epoch",
        message=f"{on_gpus(cell.cell)} an epoch is {steps} step{'s' * (steps != 1)}: the data set has "
        f"{told} examples. What an epoch costs once (starting loader workers, evaluation, "
        "checkpoints) then weighs much, and more GPUs do not shorten it.",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "steps_per_epoch": steps,
            "num_examples": examples,
        },
        fix="keep loader workers between epochs (persistent_workers=True), evaluate and save every few "
        "epochs, or stay with one GPU: the data set is small",
    )  # fmt: skip
