"""Advice: from a projection to a recommendation, with everything that it rests on.

Puts together what other modules of this package know: the steps on any number of GPUs (`project`), the run's
length, waits, price, convergence. Reads no files and asks nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

from samestep.advise import remarks
from samestep.advise.batches import WAYS, Way, other, way_of
from samestep.advise.cells import Cell, checked
from samestep.advise.context import Context
from samestep.advise.convergence import ExamplesNeeded, examples_needed, too_small
from samestep.advise.length import Length, run_of
from samestep.advise.named import cells_of
from samestep.advise.nodes import node_of
from samestep.advise.offers import Offer, Run, offers_of, pareto
from samestep.advise.origins import of_conditions
from samestep.advise.project import Projection, project
from samestep.advise.reason import Price, of_duplicated, reason
from samestep.advise.recommend import Recommendation, recommend
from samestep.advise.rows import MeasuredRow, ProjectedRow, Row
from samestep.advise.waits import Waits
from samestep.advise.whatif import WhatIf, limit, what_ifs
from samestep.advise.words import gpus as told_gpus
from samestep.errors import ConfigError, SamestepError, listed
from samestep.findings import Finding

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
    needed: dict[int, ExamplesNeeded]
    recommendation: Recommendation
    reason: str
    what_ifs: tuple[WhatIf, ...] = ()
    findings: tuple[Finding, ...] = ()
    remarks: tuple[str, ...] = ()
    price: Price | None = None
    run: Run
    is_step_known: bool = True
    """Not where examples a second are known, and no batch: then a step counts as one example on each GPU."""
    is_batch_known: bool = True
    """Where it is not, each GPU is taken to have as many examples as on the fewest."""

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
            "is_batch_known": self.is_batch_known,
            "rows": [
                self._offer_json(offer)
                | {"is_pareto": offer.gpus in front}
                | {f"{way}_batch": self._of_way_json(way, offer.gpus) for way in WAYS}
                for offer in self.offers
            ],
            "what_ifs": [each.to_json() for each in self.what_ifs],
            "findings": [finding.to_json() for finding in self.findings],
            "remarks": list(self.remarks),
        }

    def _offer_json(self, offer: Offer) -> dict[str, Any]:
        told = offer.to_json(None if self.price is None else self.price.gpu_hour)
        return told if self.is_batch_known else told | {"batch_size": None}

    def _of_way_json(self, way: Way, gpus: int) -> dict[str, Any] | None:
        offer = next((each for each in self.of_way(way) if each.gpus == gpus), None)
        if offer is None:
            return None
        needed = self.needed[gpus]
        known = {
            "is_examples_factor_known": needed.is_known,
            "examples_factor_low": needed.low,
            "examples_factor_high": needed.high,
        }
        return self._offer_json(offer) | ({} if way == "same" else known)


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
    way = way_of(measured)
    asked = project(measured, worlds, batch=way, gpus_per_node=node.gpus)
    if not asked:
        (idle,) = asked.findings
        raise ConfigError(f"{idle.message} Measure fewer GPUs, or a larger batch.")
    if len({cell.gpus for cell in measured}) == 1:
        raise OneWorld(asked)
    rows = {way: asked, other(way): project(measured, worlds, batch=other(way), gpus_per_node=node.gpus)}
    # a projection tells about every cell, asked for or not
    within = {each: [row for row in told if row.gpus in worlds] for each, told in rows.items()}
    basis = sorted({cell.gpus for cell in measured})
    if all(isinstance(row, ProjectedRow) and row.is_range for row in within[way]):
        known = max(row.gpus for row in asked if isinstance(row, MeasuredRow))
        raise ConfigError(
            f"Of {listed([told_gpus(gpus) for gpus in worlds])} there is nothing to ask for: what was "
            "measured tells too little about them, or they have less than one example each. Ask about "
            f"{known} too, which was measured."
        )
    advice = advice_from(within, way, context, question, [*of_conditions(found), *asked.findings], basis)
    of_node = remarks.of_node(node, [offer.gpus for offer in advice.offers])
    return replace(advice, remarks=(*advice.remarks, *of_node))


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
    first = rows[way][0]
    if not first.is_batch_known:
        rows = {way: rows[way], other(way): []}  # which one would that be?
    reference = first.gpus * first.batch_per_gpu
    said = [*([context.duplicated] if context.duplicated is not None else []), *findings]
    grown = {row.gpus: row.gpus * row.batch_per_gpu for row in rows["grows"]}
    if small := too_small(grown, context.examples_per_epoch):
        said.append(small)
    run, assumed = run_of(question.length, first, context)
    needed = {
        each: {
            row.gpus: examples_needed(row.gpus * row.batch_per_gpu, reference, context.noise)
            for row in rows[each]
        }
        for each in WAYS
    }
    offers = {
        each: offers_of(
            rows[each],
            run,
            waits=question.waits,
            overheads=context.overheads,
            examples_factors={gpus: of_batch.factor for gpus, of_batch in needed[each].items()},
        )
        for each in WAYS
    }
    found = recommend(offers[way] if context.duplicated is None else offers[way][:1], _worth(question.price))
    of_offers = context.of_batches({offer.gpus: offer.batch_size for offer in offers[way]})
    why = limit(of_offers, offers[way])
    return Advice(
        way=way,
        offers=tuple(offers[way]),
        others=tuple(offers[other(way)]),
        needed=needed["grows"],
        recommendation=found,
        reason=reason(offers[way], found, price=question.price, limit=why, measured=basis, run=run.name)
        if context.duplicated is None
        else of_duplicated(found, context.duplicated),
        what_ifs=tuple(what_ifs(of_offers, offers[way], offers["grows"], found.expected)),
        findings=tuple(said),
        remarks=(
            *assumed,
            *remarks.of_run(context, way, needed["grows"], is_batch_known=first.is_batch_known),
            *question.waits.about(offer.gpus for offer in offers[way]),
        ),
        price=question.price,
        run=run,
        is_step_known=first.is_in_seconds,
        is_batch_known=first.is_batch_known,
    )


def _worth(price: Price | None) -> Fraction:
    """Hours that a GPU-hour is worth."""
    return Fraction(0) if price is None else Fraction(price.gpu_hour) / Fraction(price.hour)
