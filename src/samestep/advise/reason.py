"""Reason: a recommendation in sentences. Every number in them stands in the table that they are about."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.advise.offers import Offer
from samestep.advise.recommend import SLACK, Recommendation, worth_from
from samestep.advise.words import amount, percent, told, told_between
from samestep.advise.words import gpus as told_gpus
from samestep.findings import Finding

_HARDLY = 0.001
"""Of the time to the result: what is sooner by less is not told as a part."""
_MOST_SHARE = 0.02
"""Of the time to the result, from which a wait is worth a word."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a GPU-hour costs, and what an hour until the result is worth; in the same money."""

    gpu_hour: float
    hour: float


def reason(
    offers: Sequence[Offer],
    found: Recommendation,
    *,
    price: Price | None = None,
    limit: str = "",
    measured: Sequence[int] = (),
    run: str = "",
) -> str:
    """What to ask for, what it brings, why not more, and what others would say who must not be late.

    `measured`: numbers of GPUs that a projection rests on; by default those of the offers that were measured.
    `run`: what the times are of, where nobody said how long training is.
    """
    taken = found.expected
    sure = [offer for offer in offers if not offer.is_range]
    said = [f"Ask for {told_gpus(taken.gpus)}.", _brings(offers, taken, run)]
    other = _next(sure, found)
    if other is not None:
        said.append(_why_not(taken, other, price))
    better = None if price is None else _better_by_table(sure, taken, price)
    if better is not None:
        how = "sooner and no dearer" if better.gpu_hours <= taken.gpu_hours else "the better one"
        said.append(
            f"By the table {better.gpus} would be {how}: where GPUs have a price, GPU-hours count as never "
            "fewer than those of fewer GPUs."
        )
    far = next((each for each in offers if each.is_range and _is_sooner(each, taken)), None)
    if far is not None:
        said.append(f"{far.gpus} may take {_train(far)}, a range and nothing to ask for yet: {far.because}.")
    if price is not None and price.gpu_hour > 0:
        said.append(_costs(offers, taken, price))
    if limit:
        said.append(limit)
    if not found.do_agree:
        said.append(_careful(found, price))
    if taken.kind == "projected":
        measured = measured or [offer.gpus for offer in offers if offer.kind == "measured"]
        said.append(
            f"{told_gpus(taken.gpus)} {'was' if taken.gpus == 1 else 'were'} not measured: "
            f"this is projected from {_and([str(gpus) for gpus in measured])}."
        )
    return " ".join(said)


def of_duplicated(found: Recommendation, finding: Finding) -> str:
    """Why more GPUs bring nothing as long as all of them do the same work."""
    return (
        f"Ask for {told_gpus(found.expected.gpus)}: more would do the same work again. {finding.message} "
        "Mend that and measure again; the times below count examples that were trained on twice."
    )


def _brings(offers: Sequence[Offer], taken: Offer, run: str) -> str:
    first = offers[0]
    what = run or "training"
    takes = f"{what[0].upper()}{what[1:]} take{'' if what.endswith('s') else 's'} {_train(taken)}"
    if taken.gpus != first.gpus:
        takes += f" instead of {told(first.train_s)}"
        takes += "" if first.gpus == 1 else f" on {first.gpus}"
    beside_s = taken.wait.expected_s + taken.start_s
    if beside_s < _MOST_SHARE * taken.result_s:
        return f"{takes}."
    parts = [
        f"{told(seconds)} {what}"
        for what, seconds in (("in the queue", taken.wait.expected_s), ("to start", taken.start_s))
        if seconds >= _MOST_SHARE * taken.result_s
    ]
    with_these = f", with {_and(parts)}" if parts else ""
    return f"{takes}; the result is there after {told(taken.result_s)}{with_these}."


def _next(offers: Sequence[Offer], found: Recommendation) -> Offer | None:
    """The offer that somebody who hopes for more would ask about."""
    more = [offer for offer in offers if offer.gpus > found.expected.gpus]
    if found.quickest in more:
        return found.quickest
    twice = [offer for offer in more if offer.gpus >= 2 * found.expected.gpus]
    return next(iter(twice or more), None)


def _is_sooner(far: Offer, taken: Offer) -> bool:
    """By more than the slack, and known well enough to be worth a sentence."""
    return far.result_s * float(1 + SLACK) < taken.result_s and far.train_high_s < 2 * taken.train_s


def _better_by_table(offers: Sequence[Offer], taken: Offer, price: Price) -> Offer | None:
    """What would be taken, if the GPU-hours of the table were what counts; None if it is what was."""
    better = [
        each for each in offers if each.gpus > taken.gpus and _gain_h(taken, each, price) > _slack_h(each)
    ]
    return max(better, key=lambda each: (_gain_h(taken, each, price), -each.gpus), default=None)


def _gain_h(taken: Offer, other: Offer, price: Price) -> float:
    """Hours that another one is better by, its GPU-hours counted as the table has them."""
    dearer_h = (other.gpu_hours - taken.gpu_hours) * price.gpu_hour / price.hour
    return (taken.result_s - other.result_s) / 3600 - dearer_h


def _slack_h(other: Offer) -> float:
    # what is equal but for rounding is no gain
    return float(SLACK) * other.result_s / 3600 * (1 + 1e-9)


def _why_not(taken: Offer, other: Offer, price: Price | None) -> str:
    takes = f"{other.gpus} would take {_train(other)}"
    longer_s = other.wait.expected_s - taken.wait.expected_s
    if other.result_s >= taken.result_s:
        if other.train_s >= taken.train_s:
            return f"{takes}, which is not shorter."
        later_s = other.start_s - taken.start_s
        if longer_s >= later_s:
            return f"{takes} but wait {told(longer_s)} longer in the queue."
        return f"{takes} but start {told(later_s)} later."
    more = f"{other.gpu_hours / taken.gpu_hours:.1f}"
    at_cost = f" for {more} times the GPU-hours" if more != "1.0" else ""
    if (part := 1 - other.result_s / taken.result_s) < _HARDLY:
        return f"{takes}, a result that is hardly sooner{at_cost}."
    sooner = percent(part)
    if taken.result_s <= float(1 + SLACK) * other.result_s:
        return f"{takes}, a result only {sooner} sooner{at_cost}."
    worth = worth_from(taken, other)
    if price is None or worth is None:
        return f"{takes}, a result {sooner} sooner{at_cost}."
    extra = (other.gpu_hours - taken.gpu_hours) * price.gpu_hour
    sooner_for = f"{takes}, a result {sooner} sooner for {amount(extra)} more"
    if _gain_h(taken, other, price) > _slack_h(other):
        return f"{sooner_for}."
    if worth * price.gpu_hour <= price.hour:
        return f"{sooner_for}: counted together, that gains less than {percent(float(SLACK))} of its time."
    return f"{sooner_for}: that pays from {amount(worth * price.gpu_hour)} an hour on."


def _costs(offers: Sequence[Offer], taken: Offer, price: Price) -> str:
    cost = f"It costs {amount(taken.gpu_hours * price.gpu_hour)} ({amount(taken.gpu_hours)} GPU-hours)"
    first = offers[0]
    if taken.gpus != first.gpus:
        cost += f" instead of {amount(first.gpu_hours * price.gpu_hour)}"
    return f"{cost}, with an hour until the result worth {amount(price.hour)}."


def _careful(found: Recommendation, price: Price | None) -> str:
    expected, careful = found.expected, found.careful
    if careful.result_high_s >= expected.result_high_s:
        counted = "" if price is None else " and what GPU-hours cost"
        return (
            f"By the time that holds nine times out of ten{counted}, {careful.gpus} would do: "
            f"{told(careful.result_high_s)}, against {told(expected.result_high_s)} with {expected.gpus}."
        )
    return (
        f"If it must not be late, ask for {careful.gpus}: nine times out of ten its result is there within "
        f"{told(careful.result_high_s)}, that of {expected.gpus} within {told(expected.result_high_s)}."
    )


def _train(offer: Offer) -> str:
    return told_between(offer.train_s, offer.train_low_s, offer.train_high_s)


def _and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
