"""Recommend: the number of GPUs to ask for, from offers.

The rule: the fewest GPUs N of which no other M is better by more than `SLACK` of its time:

    J(N) <= J(M) + SLACK · T(M)   for all M

    price in hours   J(N) = T(N) + c · G(N)
    T(N)             time to the result: wait, start and training
    G(N)             GPU-hours, and never fewer than those of a smaller N
    c                hours that a GPU-hour is worth: its price over the worth of an hour; 0 without a price

What follows from it, whatever the figures are:
1.  Waits that grow by d(N), where d is 0 or more and not smaller for more GPUs, never recommend more GPUs.
    So do waits that are not shorter for more GPUs, all times the same factor of 1 or more.
2.  A higher price of GPU-hours never recommends more GPUs.
3.  No offer for at most as many of these GPU-hours is sooner by more than `SLACK` of its own time.

Proof of 1 and 2: both add to J some d(N) >= 0 that does not fall with N, and to K(N) = J(N) + SLACK · T(N)
at least as much. Let n be the choice before, m the offer with the least K after. If m <= n, the choice is at
most m, since J' <= K'. Else J'(n) = J(n) + d(n) <= K(m) + d(m) <= K'(m), so n will do still, and the choice
is at most n. That G does not fall with N is needed for this: who gets a superlinear speedup is not told to
ask for more because GPUs are dear.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from samestep.advise.offers import Offer

SLACK = Fraction(1, 10)
"""Results that differ by less are equally soon: neither queues nor projections are known better."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to ask for, by what is expected and by what is not exceeded nine times out of ten."""

    expected: Offer
    careful: Offer
    quickest: Offer
    """The one with the least time to the result."""

    @property
    def do_agree(self) -> bool:
        return self.expected.gpus == self.careful.gpus


def recommend(offers: Sequence[Offer], hours_per_gpu_hour: Fraction | float = 0.0) -> Recommendation:
    """The offers to take; there must be at least one that is no range. Ranges are never recommended."""
    ordered = sorted((offer for offer in offers if not offer.is_range), key=lambda offer: offer.gpus)
    held_s = [Fraction(offer.start_s) + Fraction(offer.train_s) for offer in ordered]
    held_high_s = [Fraction(offer.start_s) + Fraction(offer.train_high_s) for offer in ordered]
    worlds, worth = [offer.gpus for offer in ordered], Fraction(hours_per_gpu_hour)
    expected = _fewest(worlds, [offer.wait.expected_s for offer in ordered], held_s, worth)
    careful = _fewest(worlds, [offer.wait.high_s for offer in ordered], held_high_s, worth)
    return Recommendation(
        expected=ordered[expected],
        careful=ordered[careful],
        quickest=min(ordered, key=lambda offer: (offer.result_s, offer.gpus)),
    )


def _fewest(
    worlds: Sequence[int], waits_s: Sequence[float], held_s: Sequence[Fraction], worth: Fraction
) -> int:
    """The place of the first than which no other is better by more than the slack.

    In fractions: rounding must not decide between two that are as good, once so and once the other way.
    """
    counted = accumulate((gpus * each for gpus, each in zip(worlds, held_s, strict=True)), max)
    results = [Fraction(wait) + held for wait, held in zip(waits_s, held_s, strict=True)]
    prices = [result + worth * gpu_s for result, gpu_s in zip(results, counted, strict=True)]
    limit = min(price + SLACK * result for price, result in zip(prices, results, strict=True))
    return next(place for place, price in enumerate(prices) if price <= limit)


def worth_from(taken: Offer, other: Offer) -> float | None:
    """GPU-hours that an hour must be worth for a sooner offer that costs more to be the better; None if it is
    not sooner, or costs no more."""
    saved_h = (taken.result_s - other.result_s) / 3600
    more = other.gpu_hours - taken.gpu_hours
    return more / saved_h if saved_h > 0 and more > 0 else None
