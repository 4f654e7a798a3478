"""Whether two recorded runs took the same steps: pure judgement on two records, no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

UNIT_ROUNDOFF = 2.0**-24
"""Half the distance from 1 to the next number of 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The verdict on a candidate against its reference, with the step where it was closest to failing.

    `first_difference` says what differs first, in words; empty where nothing does.
    """

    verdict: Literal["same", "equal", "different", "inconclusive"]
    num_steps: int
    worst_step: int
    worst_difference: float
    worst_tolerance: float
    first_difference: str = ""


def tolerance(step: int, *, terms: int, largest_loss: float) -> float:
    """How far apart the losses of one step may be for rounding alone, `step` counted from 1.

    Summing n numbers in another order changes the sum by at most γ(n) = n·u / (1 − n·u) of the sum of their
    sizes, u the unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, ch. 4). With n the
    examples of a step, the loss and the gradient of each step are so changed by at most γ(n) of their size.
    Each earlier step leaves such an error in the weights, and a training that does not blow errors up adds
    them: `step` times γ(n), measured on the largest loss so far.

    Not promised for models with kinks: where rounding moves an input of a ReLU across zero, the gradient
    jumps by far more than γ(n), and the same steps end up further apart than this.
    """
    n = max(terms, 2)
    gamma = n * UNIT_ROUNDOFF / (1 - n * UNIT_ROUNDOFF)
    return step * gamma * largest_loss


def compare(reference: Iterable[Mapping[str, Any]], candidate: Iterable[Mapping[str, Any]]) -> Comparison:
    """Compare the steps of two records: learning rates and examples exactly, losses within `tolerance`."""
    ours = {row["step"]: row for row in reference}
    theirs = {row["step"]: row for row in candidate}
    verdict: Literal["same", "equal", "different", "inconclusive"] = (
        "same" if ours and theirs else "inconclusive"
    )
    first = ""
    if ours.keys() != theirs.keys():
        verdict = "different"
        step = min(ours.keys() ^ theirs.keys())
        first = f"step {step} was taken by one of the runs only"
    worst = (0, 0.0, 0.0)
    largest, terms, before, examples_before = 0.0, 0, 0, 0
    for step in sorted(ours.keys() & theirs.keys()):
        a, b = ours[step], theirs[step]
        for name in ("epoch", "examples", "lr"):
            if a.get(name) != b.get(name) and verdict != "different":
                verdict = "different"
                first = f"step {step}: {name} is {a.get(name)} and {b.get(name)}"
        loss_a, loss_b = a.get("loss"), b.get("loss")
        if loss_a is None or loss_b is None:
            continue
        largest = max(largest, abs(loss_a))
        examples = int(a.get("examples") or 0)  # so far; the steps since `before` had an equal part each
        terms = max(terms, -(-(examples - examples_before) // (step - before)))
        allowed = tolerance(step, terms=terms, largest_loss=largest)
        gap = 0.0 if loss_a == loss_b else abs(loss_a - loss_b)
        if gap > 0 and verdict == "same":
            verdict = "equal"
        if not gap <= allowed and verdict != "different":  # also where either is not a number
            verdict = "different"
            first = (
                f"step {step}: the loss is {loss_a:.8g} and {loss_b:.8g}, further apart than {allowed:.1e}"
            )
        if allowed and gap / allowed >= (worst[1] / worst[2] if worst[2] else 0.0):
            worst = (step, gap, allowed)
        before, examples_before = step, examples
    return Comparison(
        verdict=verdict if before or verdict == "different" else "inconclusive",
        num_steps=len(ours.keys() & theirs.keys()),
        worst_step=worst[0],
        worst_difference=worst[1],
        worst_tolerance=worst[2],
        first_difference=first,
    )
