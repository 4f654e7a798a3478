"""Epochs: what an epoch costs beside its steps, and its gap, made of that of a step.

Evaluation and checkpoints are told by how often they came in the steps that were seen; start-up and warm-up
come once. Of a run that is shorter than an epoch, and in which none came, nobody can tell what they cost.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from samestep.scale.cells import EpochGap, Gap, Part
from samestep.scale.estimates import Estimates
from samestep.scale.runs import Finished
from samestep.scale.statistics import LONGEST_S, Floats, on_ticks
from samestep.scale.variants import Comparison, Variant

Fixed = Literal["evaluation", "checkpoint", "start-up", "compile and warm-up"]
FIXED: tuple[Fixed, ...] = get_args(Fixed)


def fixed_s(name: Fixed, runs: Sequence[Finished], steps_per_epoch: int) -> dict[int, float]:
    """Seconds of an epoch, by round, as far as runs of a variant tell."""
    known = [(run.round, run.num_steps / steps_per_epoch, run.facts) for run in runs if run.facts is not None]
    if name == "start-up":
        return {number: facts.start_s for number, _, facts in known if facts.start_s is not None}
    if name == "compile and warm-up":
        # processes that were forked have some of it behind them
        cold = {number: facts.warm_up_s for number, _, facts in known if facts.start_s is not None}
        return cold or {number: facts.warm_up_s for number, _, facts in known}
    found = {}
    for number, epochs, facts in known:
        seconds = facts.evaluation_s if name == "evaluation" else facts.checkpoint_s
        if epochs >= 1 or seconds:
            found[number] = seconds / epochs
    return found


def epoch_gap(
    gap: Gap, comparison: Comparison, estimates: Estimates, steps_per_epoch: int, steps_of_one: int
) -> EpochGap | None:
    """The gap of the first epoch, start-up included: steps × each bar, then value(N) − value(1) / N of each
    fixed cost that is known of both.

    All are whole numbers of ticks, so that the bars add up to the last bit; None where that is too many.
    """
    roles = comparison.roles(has_norms=False)
    ideal_s, measured_s = steps_per_epoch * gap.ideal_s, steps_per_epoch * gap.measured_s
    if max(ideal_s, measured_s) > LONGEST_S / 2:
        return None
    parts = [
        Part(
            name=part.name,
            seconds=steps_per_epoch * part.seconds,
            low=steps_per_epoch * part.low,
            high=steps_per_epoch * part.high,
        )
        for part in gap.parts
    ]
    for name in FIXED:
        many = _known(name, roles["full"], estimates, steps_per_epoch)
        one = _known(name, roles["one"], estimates, steps_of_one)
        if many is None or one is None or max(many[0], one[0]) > LONGEST_S / 8:
            continue
        if not np.any([one[0], many[0]]) and not np.nan_to_num([*one[1], *many[1]]).any():
            continue  # the program has no such thing
        due_s, spent_s = on_ticks(one[0] / comparison.cell.gpus), on_ticks(many[0])
        seconds = spent_s - due_s
        apart = many[1] - one[1] / comparison.cell.gpus
        around = estimates.around_difference(apart, seconds, spent_s)
        parts.append(Part(name=name, seconds=seconds, low=around.low, high=around.high))
        ideal_s, measured_s = ideal_s + due_s, measured_s + spent_s
    return EpochGap(ideal_s=ideal_s, measured_s=measured_s, parts=tuple(parts))


def _known(name: Fixed, variant: Variant, estimates: Estimates, steps: int) -> tuple[float, Floats] | None:
    by_round = fixed_s(name, estimates.measured(variant), steps)
    return estimates.over_rounds(by_round) if by_round else None
