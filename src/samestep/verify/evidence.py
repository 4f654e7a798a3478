"""Evidence: the runs that were made for one number of ranks, and what was found by comparing them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from samestep.findings import Finding
from samestep.verify.comparison import Comparison
from samestep.verify.runner import Run
from samestep.verify.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A run on one rank and one on several, given the same global batches, and their comparison."""

    replay: Trace
    counterpart: Trace
    run: Run
    """That of the counterpart."""
    comparison: Comparison
    turned: tuple[Trace, ...] = ()
    """The replay with its batches in other orders: what rounding alone does."""


@dataclass(kw_only=True)
class Evidence:
    """What is known of a candidate.

    `reference`, `repeat` and `candidate` are the program as it is. `pair` is the comparison on equal terms:
    randomness taken out, the same global batches. `frozen` is the same with norm layers that neither use nor
    change batch statistics. What was not run, or could not be, is None.
    """

    candidate_run: Run
    candidate: Trace
    reference: Trace
    repeat: Trace | None = None
    pair: Pair | None = None
    frozen: Pair | None = None
    starved: Trace | None = None
    """The counterpart, with ranks other than the first that evaluate one of their batches again and again."""
    starved_first: Trace | None = None
    """The same for the first rank instead of the others."""
    found: list[Finding] = field(default_factory=list)
    """What rules before this one found."""

    @property
    def world_size(self) -> int:
        return self.candidate_run.world_size

    @property
    def exchange(self) -> Pair | None:
        """The pair in which differences are not those of norm layers."""
        return self.frozen or self.pair

    def has(self, *causes: str) -> bool:
        """Whether a rule before this one found any of the causes."""
        return any(finding.cause in causes for finding in self.found)


Rule = Callable[[Evidence], Iterator[Finding]]
