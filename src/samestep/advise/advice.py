"""Advice: from a projection to a recommendation, with everything that it rests on.

Puts together what other modules of this package know: the steps on any number of GPUs (`project`), the run's
length, waits, price, convergence. Reads no files and asks nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from samestep.advise.cells import Cell, checked
from samestep.advise.context import Context
from samestep.advise.convergence import Growth, cannot_share, growth, too_small
from samestep.advise.length import Length, run_of
from samestep.advise.named import cells_of
from samestep.advise.nodes import Node, node_of
from samestep.advise.offers import Offer, Run, offers_of, pareto
from samestep.advise.origins import of_conditions
from samestep.advise.project import Projection, project, rule_of
from samestep.advise.reason import Price, of_duplicated, reason
from samestep.advise.recommend import Recommendation, recommend
from samestep.advise.rows import Row
from samestep.advise.waits import Waits
from samestep.advise.whatif import WhatIf, limit, what_ifs
from samestep.advise.words import gpus as told_gpus
from samestep.advise.words import told
from samestep.errors import ConfigError, SamestepError
from samestep.findings import Finding

Way = Literal["same", "grows"]
"""What becomes of the global batch with more GPUs."""
FILE = "advice.json"
VERSION = 2
"""Of what is written to it."""


class OneWorld(SamestepError):
    """There is no projection from one number of GPUs; says what to measure next."""

    def __init__(self, asked: Projection) -> None:
        finding = next(each for each in asked.findings if each.cause == "one-world-size")
        super().__init__(f"{finding.message} {finding.fix}".strip())
        self.finding = finding
        self.next_cell = asked.next_cell

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {
            "recommended_gpus": None,
            "reason": str(self),
            "rows": [],
            "next_cell": None if self.next_cell is None else asdict(self.next_cell),
            "findings": [self.finding.to_json()],
        }


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How many GPUs to ask for, and why; `offers` is the table that it follows from."""

    way: Way
    offers: tuple[Offer, ...]
    others: tuple[Offer, ...]
    """The same GPUs with the batch the other way."""
    growths: dict[int, Growth]
    recommendation: Recommendation
    reason: str
    what_ifs: tuple[WhatIf, ...] = ()
    findings: tuple[Finding, ...] = ()
    remarks: tuple[str, ...] = ()
    price: Price | None = None
    run: Run
    is_step_known: bool = True
    """Not where examples a second are known, and no batch: then a step counts as one example on each GPU."""

    @property
    def recommended_gpus(self) -> int:
        return self.recommendation.expected.gpus

    @property
    def front(self) -> set[int]:
        """GPUs of the offers that no other beats in both time and cost."""
        return {offer.gpus for offer in pareto(self.offers)}

    def of_way(self, way: Way) -> tuple[Offer, ...]:
        return self.offers if way == self.way else self.others

    def to_json(self) -> dict[str, Any]:
        front = self.front
        return {
            "version": VERSION,
            "recommended_gpus": self.recommended_gpus,
            "recommended_gpus_90": self.recommendation.careful.gpus,
            "reason": self.reason,
            "batch": self.way,
            "num_examples": self.run.num_examples,
            "num_epochs": self.run.num_epochs,
            "is_step_known": self.is_step_known,
            "rows": [
                self._offer_json(offer)
                | {"is_pareto": offer.gpus in front}
                | {f"{way}_batch": self._of_way_json(way, offer.gpus) for way in ("same", "grows")}
                for offer in self.offers
            ],
            "what_ifs": [each.to_json() for each in self.what_ifs],
            "findings": [finding.to_json() for finding in self.findings],
            "remarks": list(self.remarks),
        }

    def _of_way_json(self, way: Way, gpus: int) -> dict[str, Any] | None:
        offer = next((each for each in self.of_way(way) if each.gpus == gpus), None)
        if offer is None:
            return None
        known = {} if way == "same" else self._growth_json(gpus)
        return self._offer_json(offer) | known

    def _growth_json(self, gpus: int) -> dict[str, Any]:
        grown = self.growths[gpus]
        return {
            "is_examples_factor_known": grown.is_known,
            "examples_factor_low": grown.low,
            "examples_factor_high": grown.high,
        }

    def _offer_json(self, offer: Offer) -> dict[str, Any]:
        price = None if self.price is None else self.price.gpu_hour
        costs = (offer.gpu_hours, offer.gpu_hours_low, offer.gpu_hours_high)
        cost, cost_low, cost_high = (None if price is None else hours * price for hours in costs)
        return {
            "gpus": offer.gpus,
            "nodes": offer.nodes,
            "kind": offer.kind,
            "batch_size": offer.batch_size,
            "step_s": offer.step_s,
            "low_s": offer.low_s,
            "high_s": offer.high_s,
            "speedup": offer.speedup,
            "speedup_low": offer.speedup_low,
            "speedup_high": offer.speedup_high,
            "efficiency": offer.efficiency,
            "efficiency_low": offer.efficiency_low,
            "efficiency_high": offer.efficiency_high,
            "examples_factor": offer.examples_factor,
            "wait_s": offer.wait.expected_s,
            "wait_high_s": offer.wait.high_s,
            "start_s": offer.start_s,
            "train_s": offer.train_s,
            "train_low_s": offer.train_low_s,
            "train_high_s": offer.train_high_s,
            "result_s": offer.result_s,
            "result_high_s": offer.result_high_s,
            "is_range": offer.is_range,
            "because": offer.because,
            "gpu_hours": offer.gpu_hours,
            "gpu_hours_low": offer.gpu_hours_low,
            "gpu_hours_high": offer.gpu_hours_high,
            "cost": cost,
            "cost_low": cost_low,
            "cost_high": cost_high,
        }


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked about a job."""

    worlds: Sequence[int]
    length: Length = field(default_factory=Length)
    waits: Waits = field(default_factory=Waits)
    price: Price | None = None
    gpus_per_node: int | None = None


def advise(cells: Iterable[Cell | Mapping[str, Any]], context: Context, question: Question) -> Advice:
    """The advice for a job; refuses one that was measured at one number of GPUs alone."""
    found = cells_of(cells)
    node = node_of(found, question.gpus_per_node)
    measured = checked(found, node)
    fewest = measured[0].gpus
    worlds = [gpus for gpus in sorted(set(question.worlds)) if gpus >= fewest]
    if not worlds:
        raise ConfigError(
            f"Up to {max(question.worlds)} GPUs were asked about, but the fewest that were measured are "
            f"{fewest}: ask about more with --to, or measure fewer."
        )
    way: Way = rule_of(measured)
    asked = project(measured, worlds, batch=way, gpus_per_node=node.gpus)
    if len({cell.gpus for cell in measured}) == 1:
        raise OneWorld(asked)
    other: Way = "grows" if way == "same" else "same"
    rows = {way: asked, other: project(measured, worlds, batch=other, gpus_per_node=node.gpus)}
    # a projection tells about every cell, asked for or not
    within = {each: [row for row in told if row.gpus in worlds] for each, told in rows.items()}
    basis = sorted({cell.gpus for cell in measured})
    advice = advice_from(within, way, context, question, [*of_conditions(found), *asked.findings], basis)
    is_step_known = all(cell.is_in_seconds for cell in measured)
    said = (*advice.remarks, *([] if is_step_known else [_NO_STEP]), *_about_node(node, worlds))
    return replace(advice, remarks=said, is_step_known=is_step_known)


def advice_from(
    rows: Mapping[Way, Sequence[Row]],
    way: Way,
    context: Context,
    question: Question,
    findings: Sequence[Finding] = (),
    basis: Sequence[int] = (),
) -> Advice:
    """The advice that follows from rows of both ways; `way` is the one that was measured.

    `basis`: numbers of GPUs that were measured, where rows do not have all of them.
    """
    rows = dict(rows)
    other: Way = "grows" if way == "same" else "same"
    first = rows[way][0]
    reference = first.gpus * first.batch_per_gpu
    said = [*([context.duplicated] if context.duplicated is not None else []), *findings]
    if rows["same"]:
        stays = rows["same"][0].gpus * rows["same"][0].batch_per_gpu
        idle = cannot_share([row.gpus for row in rows["same"]], stays)
        rows["same"] = [row for row in rows["same"] if row.gpus <= stays]
        if idle is not None and way == "same" and not rows["same"]:
            raise ConfigError(f"{idle.message} Measure fewer GPUs, or a larger batch.")
        said += [idle] if idle is not None and way == "same" else []
    grown = {row.gpus: row.gpus * row.batch_per_gpu for row in rows["grows"]}
    if small := too_small(grown, context.examples_per_epoch):
        said.append(small)
    run, remarks = run_of(question.length, first, context)
    growing = {gpus: growth(batch, reference, context.noise) for gpus, batch in grown.items()}
    kept = {
        row.gpus: growth(row.gpus * row.batch_per_gpu, reference, context.noise).factor
        for row in rows["same"]
    }
    factors = {"same": kept, "grows": {gpus: each.factor for gpus, each in growing.items()}}
    offers: dict[Way, list[Offer]] = {
        each: offers_of(
            rows[each],
            run,
            waits=question.waits,
            overheads=context.overheads,
            examples_factors=factors[each],
        )
        for each in (way, other)
    }
    found = recommend(offers[way] if context.duplicated is None else offers[way][:1], _worth(question.price))
    why = limit(context, offers[way])
    return Advice(
        way=way,
        offers=tuple(offers[way]),
        others=tuple(offers[other]),
        growths=growing,
        recommendation=found,
        reason=reason(offers[way], found, price=question.price, limit=why, measured=basis, run=run.name)
        if context.duplicated is None
        else of_duplicated(found, context.duplicated),
        what_ifs=tuple(what_ifs(context, offers[way], offers["grows"], found.expected)),
        findings=tuple(said),
        remarks=(
            *remarks,
            *_about(context, way, growing),
            *question.waits.about(offer.gpus for offer in offers[way]),
        ),
        price=question.price,
        run=run,
    )


_NO_STEP = (
    "How many examples a step has is not known, so no time of a step is: speedups hold, and times of the run "
    "if --alone says its length. Add batch_per_gpu or batch_size to the table."
)


def _about_node(node: Node, worlds: Sequence[int]) -> list[str]:
    if node.is_told or node.num_for(max(worlds)) == 1:
        return []
    return [f"A node is taken to have {node.gpus} GPUs, as is usual: say how many with --gpus-per-node."]


def _worth(price: Price | None) -> Fraction:
    """Hours that a GPU-hour is worth."""
    return Fraction(0) if price is None else Fraction(price.gpu_hour) / Fraction(price.hour)


def _about(context: Context, way: Way, growing: dict[int, Growth]) -> list[str]:
    """What has to be said of convergence and of start-up."""
    said = []
    if context.marks:
        said.append(
            f"The sweep marked its comparison: {', '.join(context.marks)}. Its page says what that means."
        )
    if not context.has_start:
        said.append("How long a job takes to start is not known: it counts as nothing.")
    elif (start_s := max(context.overheads.start_s.values())) > 0:
        said.append(f"Starting takes {told(start_s)}, as it did on the GPUs that were measured.")
    if not all(each.is_known for each in growing.values()):
        said.append(
            "The gradient noise scale is not known: a batch that grows with the GPUs is counted as if it "
            "needed no more examples, which is the best case."
        )
    if way == "grows" and growing and (most := growing[max(growing)]).is_known and most.factor > 1.005:
        said.append(
            f"A batch that grows needs more examples by the gradient noise scale, and training counts them: "
            f"{most.factor:.2f} times as many on {told_gpus(max(growing))}."
        )
    if way == "grows":
        said.append("The batch grows with the GPUs: that is other training than on the fewest of them.")
    return said
