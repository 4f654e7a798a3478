"""Plan: which runs to make, one after the other, until there is a verdict on every number of ranks."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from samestep.errors import RecordError
from samestep.experiment import Experiment, pass_key
from samestep.findings import Finding
from samestep.observations import Observations
from samestep.verify.causes import judged
from samestep.verify.causes.metrics import is_of_evaluation
from samestep.verify.comparison import QUANTITIES, Comparison, Difference, Mark, Quantity, compare
from samestep.verify.evidence import Evidence, Pair
from samestep.verify.replay import replayed_batches
from samestep.verify.runner import Run, Runner
from samestep.verify.trace import Trace

Verdict = Literal["same", "equal", "different", "inconclusive"]
_SEED = 20_240_229
_MORE_ORDERS = (2, 3, 4)
_ORDER: tuple[Verdict, ...] = ("same", "equal", "inconclusive", "different")


@dataclass(kw_only=True)
class Verification:
    """The verdict on a program, what it rests on, and what it does not cover."""

    worlds: list[int]
    verdict: Verdict = "inconclusive"
    first_difference: Difference | None = None
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    comparisons: dict[int, Comparison] = field(default_factory=dict)
    """By number of ranks; there is none where nothing could be compared."""

    @property
    def table(self) -> list[tuple[Quantity, int, Mark]]:
        """The mark of each quantity in each step, the worst over all numbers of ranks."""
        worst: dict[tuple[Quantity, int], Mark] = {}
        order: tuple[Mark, ...] = ("same", "equal", "different")
        for comparison in self.comparisons.values():
            for key, mark in comparison.marks.items():
                worst[key] = max(worst.get(key, "same"), mark, key=order.index)
        return [
            (q, n, mark)
            for (q, n), mark in sorted(worst.items(), key=lambda m: (QUANTITIES.index(m[0][0]), m[0][1]))
        ]

    def to_json(self) -> dict[str, Any]:
        first = self.first_difference
        return {
            "verdict": self.verdict,
            "worlds": self.worlds,
            "first_difference": None if first is None else dataclasses.asdict(first),
            "findings": [finding.to_json() for finding in self.findings],
            "remarks": self.remarks,
            "table": [[quantity, step, mark] for quantity, step, mark in self.table],
            "runs": [
                {"name": r.name, "world_size": r.world_size, "status": r.status, "seconds": r.seconds}
                for r in self.runs
            ],
        }


def verify(run: Runner, worlds: Sequence[int]) -> Verification:
    """Run a program on one rank and on each of `worlds`, and say whether it trains the same."""
    sizes = sorted({size for size in worlds if size > 1})
    return _Verifying(run, [1, *sizes]).verification


class _Verifying:
    def __init__(self, run: Runner, worlds: list[int]) -> None:
        self._runner = run
        self.verification = Verification(worlds=worlds)
        self._base = Experiment()
        self._is_repeatable = True
        self._verify(worlds[1:])

    def _verify(self, sizes: list[int]) -> None:
        made = self._reference()
        if made is None:
            return
        reference, repeat = made
        verdicts: list[Verdict] = []
        for size in sizes:
            verdicts.append(self._verdict_on(size, reference, repeat))
        if not sizes:
            self._remark("only one rank was asked for: there is nothing to compare with it")
            return
        self.verification.verdict = max(verdicts, key=_ORDER.index)

    def _reference(self) -> tuple[Trace, Trace] | None:
        """The program on one rank, twice; seeded by us if it is not the same twice otherwise."""
        traces = []
        for name, why in (("reference", "as it is"), ("repeat", "the same once more")):
            run, trace = self._run(name, 1, self._base, why)
            if trace is None or run.status in ("failed", "stalled"):
                said = run.failure.sentence if run.failure is not None else "it left no observations"
                self._remark(f"on one rank the program does not run, so there is no reference: {said}")
                return None
            if not self._has_steps(trace):
                return None
            traces.append(trace)
        if not _is_repeatable(*traces) and _has_one_order(*traces):
            self._base = Experiment(seed=_SEED)
            self._remark(
                "two runs on one rank differ: the program does not seed its generators; they were seeded for "
                "it, by rank, in all runs below"
            )
            return self._reference_again()
        return traces[0], traces[1]

    def _reference_again(self) -> tuple[Trace, Trace] | None:
        traces = []
        for name, why in (("reference-seeded", "seeded"), ("repeat-seeded", "seeded, once more")):
            _, trace = self._run(name, 1, self._base, why)
            if trace is None or not self._has_steps(trace):
                return None
            traces.append(trace)
        if not _is_repeatable(*traces):
            self._is_repeatable = False
            self._remark(
                "two runs on one rank differ though they were seeded: what they differ by is taken for "
                "noise, and nothing can be proved"
            )
        return traces[0], traces[1]

    def _has_steps(self, trace: Trace) -> bool:
        first = trace.first
        if first.num_steps:
            return True
        if first.num_spawned:
            self._remark(
                f"the program starts {first.num_spawned} processes of its own, which nobody watches; have it "
                "train in the process that is started, as under torchrun"
            )
        elif first.end is not None and not first.end.saw_torch:
            self._remark("the program never loaded torch")
        else:
            self._remark("the program took no optimizer step: there is no training to compare")
        return False

    def _verdict_on(self, size: int, reference: Trace, repeat: Trace) -> Verdict:
        run, candidate = self._run(f"{size}-ranks", size, self._base, "as it is", reference)
        if candidate is None:
            said = run.failure.sentence if run.failure is not None else "no rank left observations"
            self._remark(f"on {size} ranks: {said}")
            return "inconclusive"
        if any(row.kind.startswith("FSDP") for rows in candidate.first.models.values() for row in rows):
            self._remark(
                "the program splits its model over ranks (FSDP): only replicas of a whole model are compared"
            )
            return "inconclusive"
        evidence = Evidence(candidate_run=run, candidate=candidate, reference=reference, repeat=repeat)
        if candidate.num_full and (run.status in ("finished", "cut") or _went_as_far(candidate, reference)):
            evidence.pair = self._pair(run, reference, repeat, candidate)
            if (
                evidence.pair is not None
                and evidence.pair.comparison.is_different
                and _has_statistics(candidate)
            ):
                evidence.frozen = self._pair(run, reference, repeat, candidate, frozen=True)
            evidence.starved = self._starved(size, evidence.pair, reference, is_first=False)
            if evidence.starved is not None:
                evidence.starved_first = self._starved(size, evidence.pair, reference, is_first=True)
                _forget_other_metrics(evidence)
        findings = judged(evidence)
        if evidence.pair is not None and [found.cause for found in findings] == ["unexplained-difference"]:
            evidence.pair = self._in_more_orders(size, evidence.pair, reference, repeat)
            evidence.found = []
            _forget_other_metrics(evidence)
            findings = judged(evidence)
        known = {finding.cause for finding in self.verification.findings}
        self.verification.findings += [finding for finding in findings if finding.cause not in known]
        comparison = evidence.pair.comparison if evidence.pair is not None else None
        if comparison is not None:
            self.verification.comparisons[size] = comparison
            if self.verification.first_difference is None:
                self.verification.first_difference = comparison.first or _natural_difference(evidence)
        return self._judge(size, evidence, comparison)

    def _judge(self, size: int, evidence: Evidence, comparison: Comparison | None) -> Verdict:
        if evidence.found:
            return "different"
        if comparison is not None and comparison.blind_from is not None:
            self._remark(
                f"on {size} ranks nothing can be told from step {comparison.blind_from} on: another order of "
                "the examples within a batch alone changes gradients by much of their size"
            )
        if comparison is None or not comparison.num_steps:
            self._remark(f"on {size} ranks no step could be compared")
            return "inconclusive"
        first = comparison.first
        if evidence.candidate.exchanges_weights:
            self._remark(f"on {size} ranks weights are exchanged, not gradients: these cannot be compared")
            return "inconclusive"
        if first is not None:
            draws = any(rank.draws_in_loop(first.step) for rank in evidence.candidate.ranks.values())
            why = "it draws them at random" if draws else "one rank could not be given the same"
            self._remark(
                f"on {size} ranks the {first.quantity} of step {first.step} are not those of one rank "
                f"({why}): nothing after that can be compared"
            )
            return "inconclusive"
        if not self._is_repeatable:
            return "inconclusive"
        if _evaluates_later(evidence.candidate, comparison.num_steps):
            self._remark(
                f"on {size} ranks no evaluation came within the {comparison.num_steps} steps that were "
                "compared, so what it prints was not; --steps looks into more"
            )
        return "same" if comparison.is_same else "equal"

    def _pair(
        self, candidate_run: Run, reference: Trace, repeat: Trace, candidate: Trace, *, frozen: bool = False
    ) -> Pair | None:
        """A run on one rank that is given the global batches of one on several, and what they differ by."""
        size = candidate_run.world_size
        neutral = dataclasses.replace(
            self._base,
            is_dropout_off=_draws_in_forward(candidate) or _draws_in_forward(reference),
            are_examples_seeded=_draws_in_loader(candidate) or _draws_in_loader(reference),
            are_norms_frozen=frozen,
        )
        tag = "-frozen" if frozen else ""
        told = _told(neutral, candidate, reference)
        words = ", ".join(told) or "as it is"
        run, counterpart = candidate_run, candidate
        if neutral != self._base:
            run, made = self._run(f"{size}-ranks-alike{tag}", size, neutral, words, reference)
            if made is None or not made.num_full:
                return None
            counterpart = made
        batches = replayed_batches(counterpart, reference)
        lengths = _lengths(counterpart) if batches else {}
        replay: Trace | None = reference
        if neutral != self._base or not _has_same_batches(reference, counterpart):
            given = dataclasses.replace(neutral, batches=batches, lengths=lengths)
            why = f"given the batches of {size} ranks" if batches else "as it is"
            _, replay = self._run(f"1-rank-given-{size}{tag}", 1, given, ", ".join([why, *told]))
            if replay is not None and replay.num_full < min(reference.num_full, counterpart.num_full):
                self._remark(
                    f"one rank that is given the batches of {size} ranks does not get as far as these"
                )
                replay = None
        if replay is None:
            return None
        turned = (
            () if frozen else self._turned(f"1-rank-turned-{size}", replay, counterpart, reference, neutral)
        )
        comparison = self._compared(replay, counterpart, neutral, reference, repeat, turned)
        return Pair(replay=replay, counterpart=counterpart, run=run, comparison=comparison, turned=turned)

    def _turned(
        self,
        name: str,
        replay: Trace,
        counterpart: Trace,
        reference: Trace,
        neutral: Experiment,
        *,
        order: int = 1,
    ) -> tuple[Trace, ...]:
        """The replay with its batches in another order, if it can be had."""
        batches = replayed_batches(counterpart, reference, order=order)
        if not batches:
            return ()
        given = dataclasses.replace(neutral, batches=batches, lengths=_lengths(counterpart))
        why = ", ".join(["the same batches in another order", *_told(neutral, counterpart, reference)])
        _, turned = self._run(name, 1, given, why)
        is_alike = turned is not None and turned.num_full and _has_same_batches(replay, turned)
        return (turned,) if turned is not None and is_alike else ()

    def _in_more_orders(self, size: int, pair: Pair, reference: Trace, repeat: Trace) -> Pair:
        """The pair, compared by more draws of what rounding does.

        An activation at a kink, or an optimizer that divides by a gradient near zero, makes much of rounding
        in few places, and one other order may have missed the place.
        """
        neutral = pair.run.experiment
        turned = pair.turned
        for order in _MORE_ORDERS:
            name = f"1-rank-turned-{size}-{order}"
            turned += self._turned(name, pair.replay, pair.counterpart, reference, neutral, order=order)
        comparison = self._compared(pair.replay, pair.counterpart, neutral, reference, repeat, turned)
        return dataclasses.replace(pair, comparison=comparison, turned=turned)

    def _compared(
        self,
        replay: Trace,
        counterpart: Trace,
        neutral: Experiment,
        reference: Trace,
        repeat: Trace,
        turned: Sequence[Trace],
    ) -> Comparison:
        noise = [(replay, other) for other in turned]
        if neutral == self._base:
            noise.insert(0, (reference, repeat))
        is_given = replay is not reference
        comparison = compare(replay, counterpart, noise, is_measured=bool(turned), is_given=is_given)
        if comparison.blind_from is not None:
            strict = compare(replay, counterpart, is_given=is_given)
            if not strict.is_different:  # equal to rounding, however far another order leads
                comparison = strict
        return comparison

    def _starved(self, size: int, pair: Pair | None, reference: Trace, *, is_first: bool) -> Trace | None:
        """If a printed number is off: does it change when the first rank, or the others, evaluate others?"""
        if pair is None or pair.comparison.first_of("metric") is None:
            return None
        batches: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for rank, trace in Trace(Observations.read(pair.run.folder)).ranks.items():
            for batch in trace.batches:
                if (rank == 0) == is_first and batch.loader in trace.evaluation_loaders and batch.indices:
                    key = pass_key(batch.loader, batch.number, rank)
                    first = batches[key][0][:1] if key in batches else batch.indices[:1]
                    batches[key].append(first * len(batch.indices))
        if not batches:
            return None
        given = {key: tuple(many) for key, many in batches.items()}
        experiment = dataclasses.replace(pair.run.experiment, batches=given)
        who = "the first rank evaluates" if is_first else "the others evaluate"
        name = f"{size}-ranks-{'first' if is_first else 'others'}-starved"
        return self._run(name, size, experiment, f"{who} other examples", reference)[1]

    def _run(
        self, name: str, size: int, experiment: Experiment, why: str, reference: Trace | None = None
    ) -> tuple[Run, Trace | None]:
        run = self._runner(name, size, experiment, why=why)
        self.verification.runs.append(run)
        try:
            observations = Observations.read(run.folder)
            trace = Trace(observations, reference)
        except RecordError as error:
            self._remark(f"{name}: {error}")
            return run, None
        return run, trace

    def _remark(self, text: str) -> None:
        if text not in self.verification.remarks:
            self.verification.remarks.append(text)


def _forget_other_metrics(evidence: Evidence) -> None:
    """Take away what is printed and off, and does not depend on the examples that are evaluated."""
    if evidence.pair is not None and evidence.starved is not None:
        evidence.pair.comparison.forget(lambda d: is_of_evaluation(evidence, d) is False)


def _went_as_far(candidate: Trace, reference: Trace) -> bool:
    """Whether every rank took all steps that the reference did: what came after was the end of the process.

    Process groups of torch that are destroyed while a wrapped model is alive hang now and then.
    """
    ours = reference.first.num_steps
    return all(rank.num_steps >= ours for rank in candidate.ranks.values())


def _evaluates_later(candidate: Trace, num_steps: int) -> bool:
    """Whether what is printed after evaluations comes after the steps that were compared only."""
    steps = [
        n for n, step in candidate.first.steps.items() if any(said.after_evaluation for said in step.said)
    ]
    return bool(steps) and min(steps) > num_steps + 1


def _told(experiment: Experiment, *traces: Trace) -> list[str]:
    # what draws in a model without such layers may be a function of dropout, or noise, which stays
    quiet = "dropout off" if any(map(_has_dropout, traces)) else "any dropout off"
    return [
        text
        for is_so, text in (
            (experiment.is_dropout_off, quiet),
            (experiment.are_examples_seeded, "examples seeded"),
            (experiment.are_norms_frozen, "norms frozen"),
        )
        if is_so
    ]


def _lengths(candidate: Trace) -> dict[str, int]:
    """How long training loaders say to be, by the line that made them, if it made no other: schedules ask."""
    first = candidate.first
    lines = Counter(loader.where for loader in first.loaders.values())
    return {
        loader.where: planned
        for number in first.training_loaders
        if (loader := first.loaders.get(number)) is not None and loader.where and lines[loader.where] == 1
        for planned in {p.num_planned for p in first.passes if p.loader == number}
        if planned is not None
    }


def _is_repeatable(a: Trace, b: Trace) -> bool:
    """Whether two runs of one program on one rank have the same bits, as far as both go."""
    for number in range(min(a.num_full, b.num_full) + 1):
        ours, theirs = (trace.first.steps.get(number) for trace in (a, b))
        if ours is None or theirs is None:
            continue
        mine = {key: state.summary.print for key, state in ours.states.items()}
        yours = {key: state.summary.print for key, state in theirs.states.items()}
        if mine != yours:
            return False
    return True


def _has_one_order(a: Trace, b: Trace) -> bool:
    """Whether models have their tensors in the same order; seeds do not mend that."""
    return all(
        rows[0].tensors == b.first.models[number][0].tensors
        for number, rows in a.first.models.items()
        if b.first.models.get(number)
    )


def _has_same_batches(reference: Trace, candidate: Trace) -> bool:
    numbers = range(1, min(reference.num_full, candidate.num_full) + 1)
    return all(reference.examples(number) == candidate.examples(number) for number in numbers)


def _draws_in_forward(trace: Trace) -> bool:
    if any(rank.draws_in_loop(n) for rank in trace.ranks.values() for n in range(1, rank.num_full)):
        return True  # dropout may stand there as well
    return any(
        call.moved
        for rank in trace.ranks.values()
        for step in rank.steps.values()
        for call in step.training_calls
    )


def _has_dropout(trace: Trace) -> bool:
    return any(row.dropouts for rank in trace.ranks.values() for rows in rank.models.values() for row in rows)


def _draws_in_loader(trace: Trace) -> bool:
    return any(batch.moved for rank in trace.ranks.values() for batch in rank.batches) or any(
        worker.moved for rank in trace.ranks.values() for worker in rank.workers
    )


def _has_statistics(trace: Trace) -> bool:
    return any(rank.statistics for rank in trace.ranks.values())


def _natural_difference(evidence: Evidence) -> Difference | None:
    """Where the program as it is first has other examples or settings than on one rank, if it is wrong."""
    if not evidence.found:
        return None
    natural = compare(evidence.reference, evidence.candidate)
    return natural.first
