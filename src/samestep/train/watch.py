"""What the first step shows about a model: statistics that stayed local, random numbers by rank.

Looks once and is silent afterwards; the cost of a long run is nothing.
"""

from torch import nn

from samestep.findings import Finding
from samestep.nn.checks import changed_buffers, never_exchanged, snapshot
from samestep.nn.dropout import rank_dependent
from samestep.train.randomness import Randomness
from samestep.world import World


class FirstStepWatch:
    """Compares a model before and after its first step; all ranks ask for the findings."""

    def __init__(self, model: nn.Module, world: World, randomness: Randomness) -> None:
        self._model = model
        self._world = world
        self._randomness = randomness
        self._before = snapshot(model)

    def is_about(self, trained: set[int]) -> bool:
        """Whether the model has any of the parameters with these ids."""
        return any(id(parameter) in trained for parameter in self._model.parameters())

    def findings(self) -> list[Finding]:
        """What a world of several ranks did differently from one rank; equal on all ranks."""
        if self._world.size == 1:
            return []
        found = never_exchanged(self._model, self._world, self._before)
        silent = {finding.evidence["module"] for finding in found}
        found += [
            finding
            for finding in changed_buffers(self._model, self._before, self._world)
            if finding.evidence["module"] not in silent
        ]
        if self._world.any(self._randomness.was_drawn_from()):
            found.append(_rank_dependent_randomness(rank_dependent(self._model)))
        return found


RANDOM_EVALUATION = Finding(
    cause="evaluation-depends-on-rank",
    message=(
        "The model draws random numbers in evaluation: every rank draws others, but which example gets which "
        "depends on the number of ranks."
    ),
    evidence={},
    fix="Let the data set hand out the noise with each example, or accept another draw.",
)


def _rank_dependent_randomness(names: list[str]) -> Finding:
    where = f" (probably in {', '.join(names)})" if names else ""
    return Finding(
        cause="randomness-depends-on-rank",
        message=(
            f"The model draws random numbers from torch's own generators{where}: every rank draws others, "
            "but which example gets which depends on the number of ranks."
        ),
        evidence={"modules": names},
        fix="Use nn.Dropout layers on tensors whose rows are the examples, or accept another draw.",
    )
