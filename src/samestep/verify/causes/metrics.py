"""Numbers that a program says of its model after an evaluation."""

from collections import Counter
from collections.abc import Iterator

from samestep.findings import Finding
from samestep.verify.causes.data import coverage
from samestep.verify.comparison import Difference
from samestep.verify.evidence import Evidence
from samestep.verify.trace import RankTrace, Trace

_REDUCTIONS = ("all_reduce", "reduce", "all_gather", "gather", "all_to_all")


def evaluation(evidence: Evidence) -> Iterator[Finding]:
    """A printed number that is another on one rank, given the same examples and with the same weights."""
    difference = _difference(evidence)
    if difference is None or evidence.has("average-updated-on-one-rank", "metric-overwritten"):
        return
    padded = list(coverage(evidence, evaluation=True))
    if padded:
        yield padded[0]
        return
    pair = evidence.pair
    assert pair is not None
    trace = pair.counterpart
    where = _where(trace, difference)
    at = f" ({where})" if where else ""
    told = {
        "line": difference.name, "step": difference.step, "candidate": difference.candidate,
        "reference": difference.reference, "where": where,
    }  # fmt: skip
    text = f"“{difference.name}” after step {difference.step} says {difference.candidate:g} on "
    text += f"{evidence.world_size} ranks and {difference.reference:g} on one, with the same weights"
    counts = _evaluated(trace, difference.step + 1)
    is_exchanged = _exchanged(trace.first, difference.step + 1)
    if not is_exchanged or _has_changed(evidence, evidence.starved, difference) is False:
        yield Finding(
            cause="metric-updated-on-one-rank" if is_exchanged else "metric-of-one-rank",
            message=f"{text}: "
            + (
                "it does not change when the other ranks evaluate other examples, though ranks exchange "
                "something."
                if is_exchanged
                else "it is of the first rank's examples only, nothing was added up over ranks."
            ),
            evidence=told | {"examples": counts},
            fix=(
                "update the metric on every rank"
                if is_exchanged
                else "sum the losses and counts over all ranks before dividing"
            )
            + at,
        )
    elif (alike := _alike_in_evaluation(trace, difference.step + 1)) is not None:
        yield Finding(
            cause="same-randomness-on-every-rank",
            message=f"{text}: ranks {alike[0]} and {alike[1]} have different examples, and put the same "
            "inputs into the model: they draw them from the same seed.",
            evidence=told | {"ranks": list(alike), "examples": counts},
            fix=f"draw what the model is given in an evaluation by example, or seed it by rank{at}",
        )
    elif len(set(counts.values())) > 1:
        yield Finding(
            cause="metric-averaged-without-counts",
            message=f"{text}: ranks evaluate {_listed(counts)} examples, and what they found counts the "
            "same.",
            evidence=told | {"examples": counts},
            fix=f"sum numerators and counts over ranks, then divide{at}",
        )
    else:
        yield Finding(
            cause="metric-merged-wrongly",
            message=f"{text}: what ranks found does not add up to what one rank finds.",
            evidence=told | {"examples": counts},
            fix="merge sums that add up (counts, sums, sums of squares), and compute the metric from them; "
            f"means, deviations and ratios do not add up{at}",
        )


def is_of_evaluation(evidence: Evidence, difference: Difference) -> bool | None:
    """Whether a printed number depends on what was evaluated; None if that was not tried.

    One that does not is a loss or accuracy of training, or a count, that is printed beside it.
    """
    if difference.quantity != "metric":
        return None
    tried = [
        _has_changed(evidence, trace, difference) for trace in (evidence.starved, evidence.starved_first)
    ]
    return None if None in tried else any(tried)


def _difference(evidence: Evidence) -> Difference | None:
    """The first printed number that is off while the weights still are not."""
    if evidence.pair is None:
        return None
    comparison = evidence.pair.comparison
    for difference in comparison.differences:
        if difference.quantity == "metric":
            return difference
        if difference.quantity in ("weight", "gradient", "buffer", "forward", "inputs", "examples"):
            return None
    return None


def _exchanged(rank: RankTrace, number: int) -> bool:
    """Whether ranks gathered or added up anything between the evaluation and the training that followed."""
    names = [event.name for event in rank.events(number)]
    if "evaluation" not in names:
        return any(name.startswith(_REDUCTIONS) for name in names)
    last = len(names) - 1 - names[::-1].index("evaluation")
    end = next((i for i in range(last, len(names)) if names[i] == "forward"), len(names))
    return any(name.startswith(_REDUCTIONS) for name in names[names.index("evaluation") : end])


def _has_changed(evidence: Evidence, starved: Trace | None, difference: Difference) -> bool | None:
    """Whether a number changed when some ranks evaluated other examples; None if that was not tried."""
    if starved is None or evidence.pair is None:
        return None
    number = difference.step + 1
    before, after = (
        [said.numbers for said in trace.first.steps[number].said if said.template == difference.name]
        if number in trace.first.steps
        else []
        for trace in (evidence.pair.counterpart, starved)
    )
    if not before or [len(numbers) for numbers in before] != [len(numbers) for numbers in after]:
        return None
    return any(
        difference.candidate == one and one != other
        for ours, theirs in zip(before, after, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )


def _alike_in_evaluation(trace: Trace, number: int) -> tuple[int, int] | None:
    """Two ranks that evaluated models on the same inputs before a step, though their examples differ."""
    first, *others = trace.ranks.values()
    examples, inputs = _evaluated_examples(first, number), _evaluated_inputs(first, number)
    for other in others:
        same_inputs = inputs and inputs == _evaluated_inputs(other, number)
        if same_inputs and not examples & _evaluated_examples(other, number):
            return first.rank, other.rank
    return None


def _evaluated_examples(rank: RankTrace, number: int) -> Counter[str]:
    return Counter(
        example
        for batch in rank.batches
        if batch.step == number and batch.loader in rank.evaluation_loaders
        for example in batch.examples
    )


def _evaluated_inputs(rank: RankTrace, number: int) -> Counter[str]:
    calls = rank.steps[number].calls if number in rank.steps else []
    return Counter(
        row for call in calls if not (call.is_training and call.has_gradients) and not call.name
        for row in call.rows
    )  # fmt: skip


def _evaluated(trace: Trace, number: int) -> dict[int, int]:
    """How many examples each rank evaluated before a step."""
    return {
        rank: sum(
            batch.num_examples or 0
            for batch in of_rank.batches
            if batch.step == number and batch.loader in of_rank.evaluation_loaders
        )
        for rank, of_rank in trace.ranks.items()
    }


def _where(trace: Trace, difference: Difference) -> str:
    step = trace.first.steps.get(difference.step + 1)
    said = step.said if step is not None else []
    return next((line.where for line in said if line.template == difference.name), "")


def _listed(counts: dict[int, int]) -> str:
    texts = [str(count) for count in counts.values()]
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
