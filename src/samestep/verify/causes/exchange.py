"""The exchange: whether the gradient that is applied is that of the global batch.

The truth is the gradient of the replay, which had the whole global batch on one rank. A few elements of each
gradient are known by name and place, from before the exchange (`local`) and from after it (`applied`); what
was done to them is found by fitting.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from samestep.findings import Finding
from samestep.observed import Clip, Criterion, Gradient
from samestep.verify.evidence import Evidence, Pair
from samestep.verify.trace import RankStep, label_of

_COLLECTIVES = ("all_reduce", "reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_EXACT = 1e-3
"""A fit explains gradients if it leaves so little of them: far above rounding, far below any cause."""

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


def clipped_before_exchange(evidence: Evidence) -> Iterator[Finding]:
    """Clipping that comes before the exchange: each rank is clipped by its own norm."""
    trace = evidence.candidate
    for number in range(1, trace.num_full + 1):
        for rank, step in trace.step(number).items():
            clip = _clip_before_exchange(step)
            if clip is None:
                continue
            norms = _norms(trace.step(number))
            if not norms and _is_off(evidence, number):
                yield Finding(
                    cause="clipped-before-exchange",
                    message=f"In step {number} {clip.kind} clips gradients to {clip.limit:g} before they are "
                    "exchanged: each rank its own, not the global gradient.",
                    evidence={"step": number, "rank": rank, "limit": clip.limit, "where": clip.where},
                    fix="clip after the exchange" + (f" ({clip.where})" if clip.where else ""),
                )
                return
            if not any(norm > clip.limit for norm in norms.values()) or len(set(norms.values())) == 1:
                continue
            yield Finding(
                cause="clipped-before-exchange",
                message=f"In step {number} gradients are clipped to {clip.limit:g} before they are "
                f"exchanged: each rank by its own norm ({_listed(norms)}), not by that of the global "
                "gradient.",
                evidence={"step": number, "rank": rank, "limit": clip.limit, "norms": _plain(norms),
                          "where": clip.where},
                fix="clip after the exchange" + (f" ({clip.where})" if clip.where else ""),
            )  # fmt: skip
            return


def _is_off(evidence: Evidence, number: int) -> bool:
    first = evidence.exchange.comparison.first_of("gradient") if evidence.exchange is not None else None
    return first is not None and first.step == number


def clipped_per_rank(evidence: Evidence) -> Iterator[Finding]:
    """Gradients scaled by a factor of its own on each rank: torch's clipping saw it, or a fit has it."""
    if evidence.has("clipped-before-exchange"):
        return
    trace = evidence.candidate
    for number in range(1, trace.num_full + 1):
        norms = _norms(trace.step(number))
        clips = [clip for step in trace.step(number).values() if step.row for clip in step.row.clips]
        if len(norms) == trace.world_size and len(set(norms.values())) > 1 and any(
            norm > clip.limit for norm, clip in zip(norms.values(), clips, strict=False)
        ):  # fmt: skip
            where = clips[0].where
            yield Finding(
                cause="clipped-per-rank",
                message=f"In step {number} each rank clips by a norm of its own ({_listed(norms)}).",
                evidence={"step": number, "norms": _plain(norms), "limit": clips[0].limit, "where": where},
                fix="clip once, the gradient of all ranks together" + (f" ({where})" if where else ""),
            )
            return
    fit = _first_fit(evidence)
    if fit is None:
        return
    edited = [
        name
        for name in fit.names
        if any(s.local[name].num_edits for s in fit.steps.values() if name in s.local)
    ]
    if edited and fit.ratio is None:
        yield Finding(
            cause="clipped-per-rank",
            message=f"In step {fit.number} the program changes gradients between backward passes, before "
            f"they are exchanged ({edited[0]}): each rank by what it has itself.",
            evidence={"step": fit.number, "parameters": edited[:8]},
            fix="clip once, after the exchange in the last backward pass of a step",
        )
        return
    if fit.applied_weights is None or fit.true_weights is None:
        return
    shrunk = fit.applied_weights / fit.true_weights
    if np.all(shrunk <= 1 + _EXACT) and np.ptp(shrunk) > 0.01 and len({*fit.examples.values()}) == 1:
        yield Finding(
            cause="clipped-per-rank",
            message=f"In step {fit.number} the gradients of ranks were made smaller by factors of their own "
            f"({', '.join(f'{value:.3g}' for value in shrunk)}) before they were added up.",
            evidence={"step": fit.number, "factors": [float(value) for value in shrunk]},
            fix="clip after the exchange, by the norm of the gradient of all ranks",
        )


def loss_reduction(evidence: Evidence) -> Iterator[Finding]:
    """Gradients that are all N times too small or too large."""
    fit = _first_fit(evidence)
    ratio = None if fit is None else (_ratio_before_clip(evidence, fit) or fit.ratio)
    if fit is None or ratio is None:
        return
    size = evidence.world_size
    where = _where_of_loss(fit.steps)
    at = f" ({where})" if where else ""
    if abs(ratio * size - 1) < 0.01:
        reductions = {c.reduction for step in fit.steps.values() for c in step.criteria if c.has_gradients}
        summed = "the loss is a sum over examples, and " if "sum" in reductions else ""
        yield Finding(
            cause="summed-loss-averaged",
            message=f"In step {fit.number} every gradient is {size} times smaller than on one rank: "
            f"{summed}the exchange divides by the number of ranks.",
            evidence={
                "step": fit.number,
                "ratio": ratio,
                "reductions": sorted(reductions),
                "where": where,
            },
            fix=f"multiply a summed loss by the number of ranks, or use a mean over the global batch{at}",
        )
    elif abs(ratio / size - 1) < 0.01:
        yield Finding(
            cause="averaged-loss-summed",
            message=f"In step {fit.number} every gradient is {size} times larger than on one rank: each "
            "rank's loss is a mean, and the exchange adds them up.",
            evidence={"step": fit.number, "ratio": ratio, "where": where},
            fix=f"divide by the number of ranks in the exchange{at}",
        )


def unequal_weights(evidence: Evidence) -> Iterator[Finding]:
    """Ranks, or turns of accumulation, with different numbers of examples or tokens that count the same."""
    if evidence.has(
        "summed-loss-averaged", "averaged-loss-summed", "clipped-before-exchange", "clipped-per-rank",
        "unused-on-one-rank", "replicas-drift",
    ):  # fmt: skip
        return
    fit = _first_fit(evidence)
    if fit is None or fit.ratio is not None:
        return
    examples = fit.examples
    turns = {rank: [c for c in step.criteria if c.has_gradients] for rank, step in fit.steps.items()}
    targets = {rank: sum(c.num_targets for c in many) for rank, many in turns.items()}
    a_turn = [c.num_targets for many in turns.values() for c in many]
    where = next((c.where for many in turns.values() for c in many if c.where), "")
    at = f" ({where})" if where else ""
    by_examples, by_targets = (_explains(counts, fit.true_weights) for counts in (examples, targets))
    if len(set(examples.values())) > 1 and (by_examples or not by_targets):
        yield Finding(
            cause="unequal-batches-averaged",
            message=f"In step {fit.number} ranks have {_listed(examples)} examples, and their mean gradients "
            "count the same: examples on a rank that has few count more.",
            evidence={"step": fit.number, "examples": _plain(examples), "where": where},
            fix="weigh each rank by its number of examples: sum of losses / sum of examples of all "
            f"ranks{at}",
        )
    elif _differ_in_a_kind(turns):
        yield Finding(
            cause="tokens-averaged-per-rank",
            message=f"In step {fit.number} ranks have {_listed(targets)} tokens or targets that count, and "
            "the mean of each rank and turn counts the same: tokens beside few others count more.",
            evidence={"step": fit.number, "targets": _plain(targets), "a_turn": a_turn[:16], "where": where},
            fix=f"sum the losses and divide by the number of tokens of the whole global batch{at}",
        )

    elif (
        fit.true_weights is not None
        and np.all(fit.true_weights > 0)
        and np.ptp(fit.true_weights) > 0.01 * np.max(np.abs(fit.true_weights))
    ):
        shares = fit.true_weights / np.sum(fit.true_weights)
        told = ", ".join(f"{share:.3g}" for share in shares)
        yield Finding(
            cause="tokens-averaged-per-rank",
            message=f"In step {fit.number} the gradients of ranks count the same, though in that of the "
            f"global batch they have the weights {told}: a mean is weighed by something else than examples.",
            evidence={"step": fit.number, "weights": [float(share) for share in shares], "where": where},
            fix=f"divide the sum of all ranks' losses by the sum of all ranks' weights{at}",
        )


def _unequal_shares(weights: Vector | None) -> Vector | None:
    """The shares that ranks have in the true gradient, if they are not equal."""
    if weights is None or not np.all(weights > 0) or np.ptp(weights) <= 0.01 * np.max(weights):
        return None
    return weights / np.sum(weights)


def _differ_in_a_kind(turns: dict[int, list[Criterion]]) -> bool:
    """Whether one loss function, at one place, counts different numbers of targets on ranks or in turns."""
    seen: dict[tuple[str, str], set[int]] = {}
    for many in turns.values():
        for criterion in many:
            seen.setdefault((criterion.kind, criterion.where), set()).add(criterion.num_targets)
    return any(len(counts) > 1 for counts in seen.values())


def _explains(counts: dict[int, int], weights: Vector | None) -> bool:
    """Whether ranks that count by these numbers have the weights that local gradients truly have."""
    total = sum(counts.values())
    if weights is None or not total or len(weights) != len(counts):
        return False
    shares = np.asarray([count / total for count in counts.values()])
    return bool(np.max(np.abs(weights / np.sum(weights) - shares)) < 0.01)


def penalty_per_rank(evidence: Evidence) -> Iterator[Finding]:
    """A penalty on the weights that is counted once a rank: the gradient is off by a multiple of them."""
    if evidence.has("summed-loss-averaged", "averaged-loss-summed", "unequal-batches-averaged"):
        return
    fit = _first_fit(evidence)
    pair = evidence.exchange
    if fit is None or pair is None:
        return
    before = pair.replay.first.steps.get(fit.number - 1)
    if before is None:
        return
    weights = {label_of(*key): state.summary.sample for key, state in before.states.items()}
    off = {d.name for d in pair.comparison.differences if (d.step, d.quantity) == (fit.number, "gradient")}
    names = [name for name in fit.names if name in weights and name in off]
    if not names:
        return
    w = np.concatenate([np.asarray(weights[name]) for name in names])
    residual = np.concatenate([fit.applied[name] - fit.true[name] for name in names])
    for what, shape in (("the weights", w), ("the signs of the weights", np.sign(w))):
        used = np.concatenate(
            [np.full(len(weights[n]), bool(np.any(fit.applied[n] != fit.true[n]))) for n in names]
        )
        x, y = shape[used], residual[used]
        if not x.size or not np.any(x):
            continue
        factor = float(x @ y / (x @ x))
        # what is left is rounding of gradients, which are larger than what is fitted
        if np.linalg.norm(y - factor * x) <= 0.02 * np.linalg.norm(y):
            where = _where_of_loss(fit.steps)
            yield Finding(
                cause="penalty-counted-per-rank",
                message=f"In step {fit.number} gradients are off by {factor:.3g} times {what}: a penalty on "
                "them is counted once a rank.",
                evidence={"step": fit.number, "factor": factor, "shape": what, "where": where},
                fix="divide the penalty by the number of ranks where gradients are added up, or add it on "
                "one rank" + (f" ({where})" if where else ""),
            )
            return


@dataclass(frozen=True)
class _Fit:
    """The gradients of the first step in which they are off though the forward pass was right.

    `ratio` is the one factor by which all are off, if there is one; the weights are those with which the
    local gradients make up the applied and the true one, if they do.
    """

    number: int
    names: list[str]
    applied: dict[str, Vector]
    true: dict[str, Vector]
    steps: dict[int, RankStep]
    examples: dict[int, int]
    ratio: float | None
    applied_weights: Vector | None
    true_weights: Vector | None


def _first_fit(evidence: Evidence) -> _Fit | None:
    pair = evidence.exchange
    if pair is None:
        return None
    first = pair.comparison.first_of("gradient")
    if first is None:
        return None
    before = [d for d in pair.comparison.differences if d.step < first.step]
    if any(d.quantity in ("weight", "forward", "examples", "inputs") for d in before):
        return None
    if any(
        d.quantity in ("examples", "inputs", "forward") and d.step == first.step
        for d in pair.comparison.differences
    ):
        return None
    return _fitted(pair, first.step)


def _fitted(pair: Pair, number: int) -> _Fit | None:
    steps = pair.counterpart.step(number)
    applied = _samples(steps[min(steps)].applied)
    true = _samples(pair.replay.first.steps[number].applied)
    names = [name for name in true if name in applied and np.all(np.isfinite(applied[name]))]
    if not names:
        return None
    a, t = (np.concatenate([of[name] for name in names]) for of in (applied, true))
    ratio = float(t @ a / (t @ t)) if np.any(t) else 0.0
    is_exact = np.linalg.norm(a - ratio * t) <= _EXACT * np.linalg.norm(a)
    local = [_samples(step.local) for step in steps.values()]
    weights: list[Vector | None] = [None, None]
    if all(name in of and np.all(np.isfinite(of[name])) for of in local for name in names):
        columns = np.stack([np.concatenate([of[name] for name in names]) for of in local], axis=1)
        weights = [_solved(columns, a), _solved(columns, t)]
    examples = pair.counterpart.num_examples_by_rank(number) or {}
    only = ratio if is_exact and abs(ratio - 1) > 0.01 else None
    return _Fit(number, names, applied, true, steps, examples, only, weights[0], weights[1])


def _solved(columns: np.ndarray[tuple[int, int], np.dtype[np.float64]], target: Vector) -> Vector | None:
    found: Vector = np.linalg.lstsq(columns, target, rcond=None)[0].astype(np.float64)
    left = np.linalg.norm(columns @ found - target)
    return found if left <= _EXACT * np.linalg.norm(target) else None


def _ratio_before_clip(evidence: Evidence, fit: _Fit) -> float | None:
    """By how much the norm is off that clipping saw; gradients that were clipped have lost the factor."""
    pair = evidence.exchange
    one = pair.replay.first.steps[fit.number].row if pair is not None else None
    norms = _norms(fit.steps)
    if one is None or not one.clips or not one.clips[0].norm or len(set(norms.values())) != 1:
        return None
    return next(iter(norms.values())) / one.clips[0].norm


def _samples(gradients: dict[str, Gradient]) -> dict[str, Vector]:
    return {
        name: np.asarray(row.summary.sample, dtype=np.float64)
        for name, row in gradients.items()
        if row.summary is not None and row.summary.sample
    }


def _clip_before_exchange(step: RankStep) -> Clip | None:
    """The first clipping after which gradients were still exchanged by hand before the update."""
    if step.row is None:
        return None
    names = [event.name for event in step.row.events]
    end = names.index("update") if "update" in names else len(names)
    for clip in step.row.clips:
        after = names[clip.after + 1 : end]
        if any(name.startswith(_COLLECTIVES) for name in after) or "backward" in after:
            return clip
    return None


def _norms(steps: dict[int, RankStep]) -> dict[int, float]:
    return {
        rank: step.row.clips[0].norm
        for rank, step in steps.items()
        if step.row is not None and step.row.clips and step.row.clips[0].norm is not None
    }


def _where_of_loss(steps: dict[int, RankStep]) -> str:
    return next((loss.where for step in steps.values() for loss in step.losses if loss.where), "")


def _listed(values: dict[int, float] | dict[int, int] | dict[int, int | None]) -> str:
    texts = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in values.values()]
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]


def _plain(values: dict[int, float] | dict[int, int] | dict[int, int | None]) -> dict[str, float | None]:
    return {str(rank): value for rank, value in values.items()}
