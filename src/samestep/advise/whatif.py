"""What-ifs: what limits the speed, and by how much each remedy would move it.

A remedy for a measured part of the step is counted as if the part were gone: the most that it can bring, on
the GPUs on which the part was measured. A bigger batch is counted by the projection, and by the noise scale.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

from samestep.advise.context import Bars, Context
from samestep.advise.convergence import examples_needed
from samestep.advise.offers import Offer
from samestep.advise.words import gpus as told_gpus
from samestep.advise.words import percent, percent_between, told

LEAST = 0.01
"""Of a step; what would save less is not worth a sentence."""

_HALF = 0.495
"""What is told as 50 % is half."""

_REMEDIES: Mapping[str, tuple[str, str]] = {
    "input pipeline": ("faster input", "input that is always there in time"),
    "sharing the host": ("more CPU per GPU", "as much of the host for each GPU as one alone has"),
    "exchange not hidden": ("faster exchange", "an exchange that is hidden behind computing"),
    "waiting for the slowest": ("even ranks", "ranks that all take as long as the mean one"),
    "synchronised norms": ("local norms", "norm layers that are not synchronised (which is other training)"),
}
_COSTS: Mapping[str, str] = {
    "input pipeline": "input",
    "sharing the host": "sharing the host's CPU",
    "exchange not hidden": "the exchange of gradients",
    "waiting for the slowest": "waiting for the slowest GPU",
    "synchronised norms": "synchronising the norm layers",
    "smaller batch": "the smaller batch on each GPU",
}


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A change, and the time of training with it; never a measurement."""

    name: str
    gpus: int
    now_s: float
    then_s: float
    message: str

    @property
    def saved(self) -> float:
        """As a part of the time now."""
        return 1 - self.then_s / self.now_s

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "gpus": self.gpus,
            "train_s": self.now_s,
            "then_s": self.then_s,
            "saved": self.saved,
            "message": self.message,
        }


def what_ifs(context: Context, offers: Sequence[Offer], grown: Sequence[Offer], taken: Offer) -> list[WhatIf]:
    """Those that save something, the most first; `grown` are offers of a batch that grows with the GPUs."""
    found = [*_bigger_batch(context, offers, grown, taken), *_more_cores(offers)]
    bars = context.bars_at(taken.gpus)
    offer = next((each for each in offers if bars is not None and each.gpus == bars.gpus), None)
    if bars is not None and offer is not None:
        found += [
            _without(bars, name, offer) for name in _REMEDIES if bars.seconds(name) > LEAST * bars.measured_s
        ]
    most: dict[str, WhatIf] = {}
    for each in sorted(found, key=lambda each: each.saved):
        most[each.name] = each
    return sorted((each for each in most.values() if each.saved > LEAST), key=lambda each: -each.saved)


def _cost_at(context: Context, offer: Offer) -> str:
    """What takes most of the time that is missing, as the subject of a sentence; empty if it is not known."""
    if offer.with_cores_s is not None:
        return _COSTS["sharing the host"]
    if offer.parts_s:
        name = max(offer.parts_s, key=lambda part: offer.parts_s[part])
        is_sure = any(bars.seconds(name) > 0 for bars in context.bars)
        return _COSTS.get(name, "") if is_sure and offer.parts_s[name] > 0 else ""
    bars = context.bars_at(offer.gpus)
    largest = bars.largest if bars is not None else None
    return _COSTS.get(largest.name, "") if largest is not None else ""


def limit(context: Context, offers: Sequence[Offer]) -> str:
    """From where on more GPUs do not pay, and why, in a sentence; of ranges nothing is said."""
    all_offers, offers = offers, [offer for offer in offers if not offer.is_range]
    quickest = min(offers, key=lambda offer: (offer.train_s, offer.gpus))
    slower = [offer for offer in offers if offer.gpus > quickest.gpus]
    if slower:
        cost = _cost_at(context, slower[0])
        times = [offer.train_s for offer in all_offers if offer.gpus >= quickest.gpus]
        if all(before < after for before, after in pairwise(times)):
            why = f"{cost} costs more than is gained" if cost else "further GPUs make training longer"
            return f"From {told_gpus(slower[0].gpus)} on, {why}."
        most = f"Up to {told_gpus(slower[-1].gpus)}, no" if len(offers) < len(all_offers) else "No"
        tail = f": {cost} costs what others gain" if cost else ""
        return f"{most} number is quicker than {quickest.gpus}{tail}."
    # those after which no other is better: times may rise and fall
    wasted = list(takewhile(lambda offer: offer.efficiency < _HALF, reversed(offers)))
    if wasted:
        cost = _cost_at(context, wasted[-1])
        tail = f", most of it in {cost}" if cost else ""
        return f"From {told_gpus(wasted[-1].gpus)} on, less than half of each GPU's time is used{tail}."
    last = offers[-1]
    if last.gpus == offers[0].gpus:
        return ""
    cost = _cost_at(context, last)
    tail = f"; most of the rest goes to {cost}" if cost else ""
    least = min(offers, key=lambda offer: offer.efficiency)
    if least.efficiency > 1 - LEAST:
        return f"Up to {told_gpus(last.gpus)}, nothing of a GPU's time is lost{tail}."
    used = percent_between(least.efficiency, least.efficiency_low, least.efficiency_high)
    if offers[0].gpus > 1:
        return f"On {told_gpus(least.gpus)}, each does {used} of what it does on {offers[0].gpus}{tail}."
    if least.kind == "measured":
        return f"Up to {told_gpus(last.gpus)}, at least {used} of each GPU's time is used{tail}."
    return f"On {told_gpus(least.gpus)}, about {used} of each GPU's time is used{tail}."


def _more_cores(offers: Sequence[Offer]) -> Iterator[WhatIf]:
    """On the fewest GPUs for which the host has too few."""
    offer = next((each for each in offers if each.with_cores_s is not None and not each.is_range), None)
    if offer is None or offer.with_cores_s is None:
        return
    saved_s = offer.num_steps * (offer.step_s - offer.with_cores_s)
    yield _saving("sharing the host", offer, saved_s)


def _without(bars: Bars, name: str, offer: Offer) -> WhatIf:
    """Without a bar, of which the run has as much of its time as the measured step has."""
    # other bars may be below 0; without this one, no step is shorter than ideal
    saved_s = min(bars.seconds(name), bars.measured_s - bars.ideal_s)
    return _saving(name, offer, offer.train_s * saved_s / bars.measured_s)


def _saving(name: str, offer: Offer, saved_s: float) -> WhatIf:
    slug, remedy = _REMEDIES[name]
    then_s = offer.train_s - saved_s
    return WhatIf(
        name=slug,
        gpus=offer.gpus,
        now_s=offer.train_s,
        then_s=then_s,
        message=f"On {told_gpus(offer.gpus)}, {remedy} would save {percent(saved_s / offer.train_s)} "
        f"at most: {told(then_s)} instead of {told(offer.train_s)}.",
    )


def _bigger_batch(
    context: Context, offers: Sequence[Offer], grown: Sequence[Offer], taken: Offer
) -> Iterator[WhatIf]:
    """On the GPUs to ask for, or on two where one is to be asked for."""
    gpus = max(2, taken.gpus)
    pair = [next((each for each in some if each.gpus == gpus), None) for some in (offers, grown)]
    now, then = pair
    if now is None or then is None or then.batch_size <= now.batch_size:
        return
    said = (
        f"{then.examples_factor:.2f} times the examples are needed by the noise scale, and counted"
        if examples_needed(then.batch_size, now.batch_size, context.noise).is_known
        else "if it needs no more examples, which is not known"
    )
    yield WhatIf(
        name="bigger batch",
        gpus=gpus,
        now_s=now.train_s,
        then_s=then.train_s,
        message=f"On {told_gpus(gpus)}, a batch of {then.batch_size:,.0f} instead of {now.batch_size:,.0f} "
        f"would take {told(then.train_s)} instead of {told(now.train_s)} ({said}); it is other training.",
    )
