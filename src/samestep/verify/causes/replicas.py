"""Replicas: models that must be the same on all ranks, from the first step to the last."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.verify.evidence import Evidence
from samestep.verify.trace import RankTrace, Trace, label_of


def parameter_order_differs(evidence: Evidence) -> Iterator[Finding]:
    """Parameters or buffers in another order in another process: what is exchanged goes by position."""
    traces: list[tuple[str, RankTrace]] = [
        (f"rank {rank}", trace) for rank, trace in evidence.candidate.ranks.items()
    ]
    if evidence.repeat is not None:
        traces += [("one rank", evidence.reference.first), ("one rank, run again", evidence.repeat.first)]
    for number, models in evidence.candidate.first.models.items():
        names = [_names(models[0].tensors)]
        for label, trace in traces[1:]:
            if number not in trace.models:
                continue
            names.append(_names(trace.models[number][0].tensors))
            if names[-1] != names[0] and sorted(names[-1]) == sorted(names[0]):
                i = next(i for i, (a, b) in enumerate(zip(names[0], names[-1], strict=True)) if a != b)
                yield Finding(
                    cause="parameter-order-differs",
                    message=f"Tensor {i} of {models[0].kind} is {names[0][i]} in one process (rank 0) and "
                    f"{names[-1][i]} in another ({label}): ranks exchange by position, and so mix them up.",
                    evidence={
                        "position": i,
                        "names": [names[0][i], names[-1][i]],
                        "processes": ["rank 0", label],
                    },
                    fix="make submodules in a fixed order: iterate over a list or sorted(...), never over a "
                    "set",
                )
                return


def frozen_on_one_rank(evidence: Evidence) -> Iterator[Finding]:
    """A parameter that needs a gradient on some ranks only."""
    for number, models in evidence.candidate.first.models.items():
        flags = {
            rank: {_name(text): text.endswith(" gradient") for text in trace.models[number][-1].tensors}
            for rank, trace in evidence.candidate.ranks.items()
            if number in trace.models
        }
        for name in _names(models[-1].tensors):
            by_rank = {rank: of[name] for rank, of in flags.items() if name in of}
            if len(set(by_rank.values())) > 1:
                frozen = [rank for rank, needs in by_rank.items() if not needs]
                yield Finding(
                    cause="frozen-on-one-rank",
                    message=f"{name} is frozen on {_ranks(frozen)} and trained on the others.",
                    evidence={"name": name, "frozen_on": frozen},
                    fix="set requires_grad in the same way on all ranks, before the model is wrapped",
                )
                return


def precision_differs(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that compute with other kinds of numbers."""
    trace = evidence.candidate
    for number in range(1, trace.num_full + 1):
        seen: dict[str, dict[int, str]] = {}
        for rank, step in trace.step(number).items():
            for call in step.training_calls:
                kinds = [call.autocast or "no autocast", *(output.dtype for output in call.outputs)]
                seen.setdefault(call.name or "output", {}).setdefault(rank, ", ".join(kinds))
        for name, kinds_of in seen.items():
            if len(kinds_of) == trace.world_size and len(set(kinds_of.values())) > 1:
                yield Finding(
                    cause="precision-differs",
                    message=f"In step {number}, {name} is computed in {_by_rank(kinds_of)}.",
                    evidence={
                        "step": number,
                        "name": name,
                        "by_rank": {str(r): k for r, k in kinds_of.items()},
                    },
                    fix="use the same autocast and dtype on all ranks",
                )
                return


def start_different(evidence: Evidence) -> Iterator[Finding]:
    """Replicas that are not equal when training begins."""
    if evidence.has("parameter-order-differs", "world-ignored"):
        return
    trace = evidence.candidate
    differing = _differing_parameters(trace, 0)
    if not differing:
        return
    wraps = [wrap.kind for models in trace.first.models.values() for m in models for wrap in m.wraps]
    name, ranks = next(iter(differing.items()))
    count = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    told = {"name": name, "parameters": len(differing), "ranks": ranks, "wraps": wraps}
    if wraps:
        yield Finding(
            cause="weights-changed-after-wrap",
            message=f"{name}{count} differs between ranks before the first step, though {wraps[0]} made the "
            f"replicas equal: {_ranks(ranks)} changed it afterwards.",
            evidence=told,
            fix="load or change weights on all ranks, or before the model is wrapped",
        )
    else:
        yield Finding(
            cause="replicas-start-different",
            message=f"{name}{count} differs between ranks before the first step: nobody made the replicas "
            "equal.",
            evidence=told,
            fix="broadcast parameters and buffers from rank 0 once the model is made, or seed the ranks "
            "alike before it is made",
        )


def unused_on_one_rank(evidence: Evidence) -> Iterator[Finding]:
    """A parameter that some ranks did not use in a step, whose gradients then are not those of all."""
    trace = evidence.candidate
    if evidence.has("frozen-on-one-rank", "world-ignored"):
        return
    for number in range(1, trace.num_full + 1):
        steps = trace.step(number)
        for name in steps[min(steps)].applied:
            rows = {rank: step.applied.get(name) for rank, step in steps.items()}
            used = {
                rank: step.local[name].num_backward > 0 for rank, step in steps.items() if name in step.local
            }
            prints = {row.summary.print if row and row.summary else None for row in rows.values()}
            if len(set(used.values())) > 1 and (len(prints) > 1 or _is_off(evidence, number)):
                without = [rank for rank, is_used in used.items() if not is_used]
                yield Finding(
                    cause="unused-on-one-rank",
                    message=f"In step {number}, {name} got no gradient on {_ranks(without)}, and the update "
                    "is " + ("not the same on all ranks." if len(prints) > 1 else "not that of one rank."),
                    evidence={"step": number, "name": name, "unused_on": without},
                    fix="exchange zeros where a rank has no gradient (DDP: find_unused_parameters=True)",
                )
                return


def skipped_update(evidence: Evidence) -> Iterator[Finding]:
    """An update that some ranks take and others leave out."""
    trace = evidence.candidate
    if evidence.has("world-ignored"):
        return
    for number in range(1, trace.num_full + 1):
        rows = {rank: step.row for rank, step in trace.step(number).items() if step.row is not None}
        turns = {rank: row.num_backward for rank, row in rows.items()}
        skipped = {rank: row.num_skipped for rank, row in rows.items()}
        if len(set(turns.values())) == 1 and len(set(skipped.values())) == 1:
            continue
        if not any(_differing_parameters(trace, later) for later in range(number, trace.num_full + 1)):
            continue  # a rank with fewer examples may have fewer turns
        without = [rank for rank, count in turns.items() if count > min(turns.values())]
        without = without or [rank for rank, count in skipped.items() if count]
        where = next((o.where for o in trace.first.optimizers.values() if o.where), "")
        yield Finding(
            cause="replicas-drift",
            message=f"Before step {number}, {_ranks(without)} left out an update that the others took: "
            "the replicas are no longer equal.",
            evidence={
                "step": number,
                "backward_passes": {str(r): n for r, n in turns.items()},
                "where": where,
            },
            fix="decide on all ranks together whether to take an update (all_reduce what decides it)"
            + (f" ({where})" if where else ""),
        )
        return


def drift(evidence: Evidence) -> Iterator[Finding]:
    """Replicas that were equal and then are not, for a reason that no rule before this one found."""
    trace = evidence.candidate
    if trace.exchanges_weights or evidence.has(
        "world-ignored", "gradients-not-exchanged", "replicas-start-different", "weights-changed-after-wrap",
        "unused-on-one-rank", "frozen-on-one-rank", "parameter-order-differs", "precision-differs",
    ):  # fmt: skip
        return
    for number in range(1, trace.num_full + 1):
        differing = _differing_parameters(trace, number)
        if not differing:
            continue
        name, ranks = next(iter(differing.items()))
        steps = trace.step(number)
        applied = {rank: step.applied.get(name) for rank, step in steps.items()}
        same_gradient = len({g.summary.print for g in applied.values() if g and g.summary}) == 1
        why = (
            "their gradients were the same, so something else than the gradient changed it"
            if same_gradient
            else "their gradients were not"
        )
        yield Finding(
            cause="replicas-drift",
            message=f"After step {number}, {name} differs between ranks ({_ranks(ranks)} from the first), "
            f"though it was the same before; {why}.",
            evidence={"step": number, "name": name, "parameters": len(differing), "ranks": ranks,
                      "same_gradient": same_gradient},
            fix="change weights and take or skip updates in the same way on all ranks",
        )  # fmt: skip
        return


def average_on_one_rank(evidence: Evidence) -> Iterator[Finding]:
    """A second model, such as a moving average, that is used on all ranks and is not the same on them."""
    trace = evidence.candidate
    if evidence.has(
        "replicas-drift", "replicas-start-different", "weights-changed-after-wrap", "world-ignored",
        "gradients-not-exchanged", "parameter-order-differs",
    ):  # fmt: skip
        return
    for number in sorted(trace.first.steps):
        for model in trace.first.steps[number].evaluated:
            prints = {rank: step.evaluated.get(model) for rank, step in trace.step(number).items()}
            used = {print_ for print_ in prints.values() if print_ is not None}
            if len(used) < 2:
                continue
            kind = trace.first.models[model][0].kind if trace.first.models.get(model) else "a model"
            yield Finding(
                cause="average-updated-on-one-rank",
                message=f"After step {number - 1}, {kind} is evaluated with weights that differ between "
                "ranks, though those that are trained do not: an average of them is updated on some ranks "
                "only.",
                evidence={"step": number - 1, "model": kind, "ranks": [r for r, p in prints.items() if p]},
                fix="update averages on every rank (they stay equal by themselves), or use them on one only",
            )
            return


def _is_off(evidence: Evidence, number: int) -> bool:
    comparison = evidence.pair.comparison if evidence.pair is not None else None
    first = comparison.first_of("gradient") if comparison is not None else None
    return first is not None and first.step == number and comparison is not None and comparison.first == first


def _differing_parameters(trace: Trace, number: int) -> dict[str, list[int]]:
    """Parameters whose bits differ between ranks after a step, with the ranks unlike the first."""
    steps = trace.step(number)
    first = steps[min(steps)]
    found = {}
    for key, state in first.states.items():
        unlike = [
            rank
            for rank, step in steps.items()
            if key in step.states and step.states[key].summary.print != state.summary.print
        ]
        if state.role == "parameter" and unlike and key[0] in trace.first.trained_models:
            found[label_of(*key)] = unlike
    return found


def _name(text: str) -> str:
    return text.partition(" ")[0]


def _names(texts: tuple[str, ...]) -> list[str]:
    return [_name(text) for text in texts]


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _by_rank(values: dict[int, str]) -> str:
    return "; ".join(f"{value} on rank {rank}" for rank, value in values.items())
