"""Plan: which runs a sweep still needs, in which order, when to stop, and what more time would buy.

Every round has every variant once, in an order of its own, so that what changes on the machine over time
hits all variants alike. The order follows from the seed, the round and the names alone: a sweep that was
interrupted goes on with it. Knows finished runs and seconds; starts nothing.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from samestep.scale.runs import Finished
from samestep.scale.variants import Cell, Comparison, Variant, comparisons

FEWEST_ROUNDS = 3
"""Before a sweep may end because its intervals are narrow: of two rounds, the difference is the interval."""
MOST_ROUNDS = 50


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What was asked for; `precision` is half of an interval as a part of its value."""

    worlds: tuple[int, ...]
    batches: tuple[int, ...]
    is_weak: bool = False
    precision: float = 0.03
    budget_s: float | None = None
    fewest_rounds: int = 1
    """That are made whatever the budget."""
    most_rounds: int = MOST_ROUNDS
    seed: int = 0

    @property
    def comparisons(self) -> list[Comparison]:
        return comparisons(self.worlds, self.batches, is_weak=self.is_weak)

    def settings(self) -> dict[str, Any]:
        """What must be the same for a sweep to be continued: all but how long and how precise it is."""
        values = asdict(self)
        for name in ("precision", "budget_s", "fewest_rounds", "most_rounds"):
            del values[name]
        # as they come back from a file
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run to make next."""

    variant: Variant
    round: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether to stop, and why, in a sentence."""

    is_over: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What more rounds would buy, since an interval shrinks with the root of their number."""

    num_rounds: int
    half_width: float
    more_rounds: int
    more_s: float
    expected_half_width: float

    def __str__(self) -> str:
        now = f"±{self.half_width:.1%} after {_counted(self.num_rounds, 'round')}"
        if self.more_rounds > MOST_ROUNDS:
            aim = f"±{self.expected_half_width:.1%} would take about {self.more_rounds} more"
            return f"{now}; {aim}: better measure when the machine is free, or longer runs (--seconds)"
        more = f"{self.more_rounds} more, about {_told_s(self.more_s)}"
        return f"{now}; {more}, would make it about ±{self.expected_half_width:.1%}"


def round_order(variants: Iterable[Variant], number: int, seed: int) -> list[Variant]:
    """The variants in the order of a round, which does not depend on the order that they are given in."""

    def place(variant: Variant) -> bytes:
        return hashlib.blake2b(f"{seed}/{number}/{variant.name}".encode(), digest_size=16).digest()

    return sorted(variants, key=place)


class Plan:
    """What is left to do of a sweep after some runs; another run, another plan.

    A variant that failed once is not run again, and the parts of a gap that can no longer be told are not
    measured any further. `has_norms` if the program synchronises norm layers.
    """

    def __init__(self, sweep: Sweep, finished: Sequence[Finished] = (), *, has_norms: bool = False) -> None:
        self.sweep = sweep
        self.failed = frozenset(run.variant for run in finished if not run.is_measured)
        self.variants = _wanted(sweep.comparisons, self.failed, has_norms=has_norms)
        self._done: dict[int, set[Variant]] = defaultdict(set)
        self._seconds: dict[Variant, list[float]] = defaultdict(list)
        for run in finished:
            self._done[run.round].add(run.variant)
            if run.is_measured:
                self._seconds[run.variant].append(run.seconds)

    @property
    def num_rounds(self) -> int:
        """Complete rounds, from the first on."""
        number = 0
        while self.variants and self._done.get(number + 1, set()).issuperset(self.variants):
            number += 1
        return number

    def missing(self) -> list[Planned]:
        """What the round under way, or the next one, still needs, in its order."""
        number = self.num_rounds + 1
        order = round_order(self.variants, number, self.sweep.seed)
        done = self._done.get(number, set())
        return [Planned(variant=variant, round=number) for variant in order if variant not in done]

    @property
    def is_between_rounds(self) -> bool:
        return len(self.missing()) == len(self.variants)

    @property
    def round_s(self) -> float | None:
        """How long a round takes, by the runs so far; None before the first."""
        if not self._seconds:
            return None
        known = {variant: median(seconds) for variant, seconds in self._seconds.items()}
        usual = median(known.values())
        return math.fsum(known.get(variant, usual) for variant in self.variants)

    @property
    def missing_s(self) -> float | None:
        """How long the rest of the round under way takes."""
        whole = self.round_s
        return None if whole is None else whole * len(self.missing()) / max(1, len(self.variants))

    def decide(self, half_widths: Mapping[Cell, float | None], spent_s: float) -> Decision:
        """Whether to make the next run, given half of each cell's interval as a part of its time.

        The first round is always made whole: without it there is nothing to tell. The budget is for
        what comes after `fewest_rounds`.
        """
        rounds, budget = self.num_rounds, self.sweep.budget_s
        if not self.variants:
            return Decision(is_over=True, reason="every run failed, so there is nothing left to measure")
        if rounds < max(1, min(self.sweep.fewest_rounds, self.sweep.most_rounds)):
            return Decision(is_over=False, reason="the first rounds are not complete")
        widest = _widest(half_widths)
        if rounds >= FEWEST_ROUNDS and widest is not None and widest <= self.sweep.precision:
            told = f"±{widest:.1%}, and ±{self.sweep.precision:.1%} was asked for"
            return Decision(is_over=True, reason=f"every interval is narrow enough: {told}")
        if budget is not None:
            if spent_s >= budget:
                return Decision(is_over=True, reason=f"the time of {budget:.0f} s is used up")
            is_enough = rounds >= FEWEST_ROUNDS and self.is_between_rounds
            if is_enough and spent_s + (self.round_s or 0.0) > budget:
                told = f"{budget - spent_s:.0f} s of {budget:.0f} s are left"
                return Decision(is_over=True, reason=f"{told}, and a round takes {self.round_s:.0f} s")
        if rounds >= self.sweep.most_rounds:
            told = f"the most that were asked for, {_counted(rounds, 'round')}, are made"
            return Decision(is_over=True, reason=told)
        return Decision(is_over=False, reason="the intervals are still wide")

    def remaining_s(self, half_widths: Mapping[Cell, float | None], spent_s: float) -> float | None:
        """How long the sweep still takes, as far as its runs so far tell; None before the first."""
        round_s, missing_s = self.round_s, self.missing_s
        if round_s is None or missing_s is None:
            return None
        rounds, widest = self.num_rounds, _widest(half_widths)
        if rounds >= FEWEST_ROUNDS and widest is not None:
            needed = math.ceil(rounds * (widest / self.sweep.precision) ** 2)
        else:
            needed = FEWEST_ROUNDS
        # the round under way, or the next, is the one that is missing
        more = max(0, min(needed, self.sweep.most_rounds) - rounds - 1)
        due = max(0, min(self.sweep.fewest_rounds, self.sweep.most_rounds) - rounds - 1)
        expected_s = missing_s + more * round_s
        if self.sweep.budget_s is not None:
            expected_s = min(expected_s, max(self.sweep.budget_s - spent_s, missing_s + due * round_s))
        return expected_s

    def outlook(self, half_widths: Mapping[Cell, float | None]) -> Outlook | None:
        """What it would take to reach the precision, or what twice the rounds would buy if it is reached."""
        rounds, widest = self.num_rounds, _widest(half_widths)
        if not rounds or widest is None:
            return None
        return outlook(rounds, widest, self.sweep.precision, self.round_s or 0.0)


def outlook(num_rounds: int, half_width: float, precision: float, round_s: float) -> Outlook:
    """What more rounds would buy: an interval over k times the rounds is 1/√k times as wide."""
    needed = math.ceil(num_rounds * (half_width / precision) ** 2) - num_rounds
    more = needed if needed > 0 else num_rounds
    return Outlook(
        num_rounds=num_rounds,
        half_width=half_width,
        more_rounds=more,
        more_s=more * round_s,
        expected_half_width=half_width * math.sqrt(num_rounds / (num_rounds + more)),
    )


def _wanted(asked: Sequence[Comparison], failed: frozenset[Variant], *, has_norms: bool) -> list[Variant]:
    """The variants that are worth running, each once, in the order of the cells."""
    found: dict[Variant, None] = {}
    for comparison in asked:
        roles = comparison.roles(has_norms=has_norms)
        if roles["full"] in failed:
            continue
        found[roles["full"]] = None
        if roles["one"] not in failed:
            found |= dict.fromkeys(roles.values())
    return [variant for variant in found if variant not in failed]


def _widest(half_widths: Mapping[Cell, float | None]) -> float | None:
    """The widest interval; None while one is not known."""
    known = [width for width in half_widths.values() if width is not None]
    return max(known) if known and len(known) == len(half_widths) else None


def _told_s(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
