"""Noise: what a look saw of gradients → the gradient noise scale.

A look has the gradients of ranks before any exchange, or of the shards of a step one by one, and the gradient
that the optimizer found: norms, means and a few elements of each tensor. The last is a multiple of the sum of
the first, by a factor that depends on how the program averages, scales its loss and clips. The factor is
found from means and elements, for which sums are sums. Where no factor fits, something is missing from the
first or was added to the last, and the step says nothing of noise.

Where norm layers are synchronised, the gradient of a rank depends on the examples of others a little. That is
not seen. Knows rows; what the norms tell is `advise.noise`'s matter.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from samestep.advise.noise import Noise, StepNorms, noise_scale
from samestep.observed import Gradient, Part, Summary
from samestep.verify.trace import RankStep, RankTrace, Trace

TOLERANCE = 2.0**-7
"""How far the sum of parts may be off, relative to its size: gradients may be exchanged in bfloat16."""
_TASK = ("-m", "samestep.rank")
_NUDGE = 1e-6
"""What torch's clipping adds to the norm that it divides by."""

Numbers = Mapping[tuple[str, int], float]
"""By parameter, the mean at 0 and elements after it."""


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """The gradient of a rank or shard; `numbers` of pieces that are added up add up."""

    rank: int
    square_norm: float
    numbers: Numbers


def noise_of_look(trace: Trace) -> Noise:
    """The noise scale over the steps that a look saw in full; if it is not known, the reason."""
    found = [norms_of_step(trace, number) for number in range(1, trace.num_full + 1)]
    noise = noise_scale(norms for norms in found if isinstance(norms, StepNorms))
    reasons = Counter(reason for reason in found if isinstance(reason, str))
    if noise.is_known or noise.low is not None or not reasons:
        return noise
    why, count = reasons.most_common(1)[0]
    return dataclasses.replace(noise, reason=f"in {count} of {len(found)} steps, {why}")


def norms_of_step(trace: Trace, number: int) -> StepNorms | str:
    """The norms of a step's parts and of the whole; or why there are none.

    With L a piece's gradient as it was seen, and A the applied one, A = a Σ L. In a script, ranks have means
    and their mean is meant: g = L / loss scale, each with the weight 1/N. In a task, pieces have sums over
    their b of all B examples, and A is clipped by f: g = L (a / f) B / b, each with the weight b / B.
    """
    if len(trace.first.optimizers) > 1:
        return "there are several optimizers, each with a gradient of its own"
    is_task = _is_task(trace)
    pieces: list[_Piece] = []
    for rank, step in trace.step(number).items():
        found = _pieces(trace.ranks[rank], step, has_shards=is_task)
        if isinstance(found, str):
            return found
        pieces += found
    counts = _counts(trace, number, pieces)
    if counts is None:
        return "it is not known how many examples each rank or shard had"
    if _are_shared(trace, number):
        return "ranks trained on the same examples"
    first = trace.step(number)[trace.first.rank]
    applied = _of_summaries(trace.first.rank, first.applied.values())
    factor = _factor([piece.numbers for piece in pieces], applied.numbers)
    if factor is None:
        return "the gradient that was applied is no multiple of the sum of those that ranks or shards had"
    if is_task:
        weights = [count / sum(counts) for count in counts]
        unit = factor / _clipped(first)
    else:
        if 0 in counts or (len(set(counts)) > 1 and not _are_means(trace.step(number).values())):
            return "ranks had different numbers of examples, and it is not known how losses are averaged"
        weights = [1 / len(pieces)] * len(pieces)
        unit = 1 / (len(pieces) * ((first.row.scale if first.row is not None else None) or 1.0))
    used = [each for each in zip(pieces, counts, weights, strict=True) if each[1]]
    if len(used) < 2:
        return "there was one rank, and one backward pass a step; look at two ranks, or at shards"
    norms = [piece.square_norm * (unit / weight) ** 2 for piece, _, weight in used]
    whole = applied.square_norm * (unit / factor) ** 2
    if not all(map(math.isfinite, (*norms, whole))):
        return "gradients are not finite"
    return StepNorms(
        num_examples=tuple(count for _, count, _ in used),
        square_norms=tuple(norms),
        whole_square_norm=whole,
        weights=tuple(weight for _, _, weight in used),
    )


def _is_task(trace: Trace) -> bool:
    return trace.first.start is not None and trace.first.start.program[:2] == _TASK


def _pieces(trace: RankTrace, step: RankStep, *, has_shards: bool) -> list[_Piece] | str:
    """The gradients of a rank: of each shard where there are several, or of all that it had.

    What a script takes away between backward passes may be gradients of several losses of the same examples.
    """
    seen = [gradient for gradient in step.local.values() if gradient.summary is not None]
    if not seen:
        return "no gradient was seen before its exchange"
    if has_shards and all(gradient.parts for gradient in seen):
        numbers = sorted({part.backward for gradient in seen for part in gradient.parts})
        return [_of_parts(trace.rank, seen, number) for number in numbers]
    exchanges = [
        call.will_exchange is True
        for call in step.training_calls
        if call.name == "" and trace.is_trained(call.model)
    ]
    has_several = max(gradient.num_backward for gradient in seen) > 1
    if any(gradient.num_edits for gradient in seen) or (has_several and sum(exchanges) > 1):
        return "gradients were exchanged or changed between the backward passes of a step"
    return [_of_summaries(trace.rank, seen)]


def _counts(trace: Trace, number: int, pieces: Sequence[_Piece]) -> list[int] | None:
    """How many examples each piece is of; shards are as nearly equal as can be, the larger ones first."""
    of_ranks = Counter(piece.rank for piece in pieces)
    if max(of_ranks.values()) == 1:
        examples = trace.num_examples_by_rank(number)
        return None if examples is None else [examples[piece.rank] for piece in pieces]
    loaded = {rank: _num_loaded(of_rank, number) for rank, of_rank in trace.ranks.items()}
    known = [count for count in loaded.values() if count is not None]
    size, larger = divmod(sum(known), len(pieces))
    counts = [size + (i < larger) for i in range(len(pieces))]
    sums: Counter[int] = Counter()
    for piece, count in zip(pieces, counts, strict=True):
        sums[piece.rank] += count
    return counts if all(sums[rank] == count for rank, count in loaded.items()) else None


def _num_loaded(trace: RankTrace, number: int) -> int | None:
    """Examples that a task's rank loaded for a step: it takes one batch for all its shards."""
    batches = [batch for batch in trace.batches if batch.loader in trace.training_loaders]
    return batches[number - 1].num_examples if number <= len(batches) else None


def _of_summaries(rank: int, gradients: Iterable[Gradient]) -> _Piece:
    found = {gradient.name: gradient.summary for gradient in gradients if gradient.summary is not None}
    squares = (_square(each, each.rms) for each in found.values())
    return _Piece(rank=rank, square_norm=math.fsum(squares), numbers=_numbers(found))


def _of_parts(rank: int, gradients: Iterable[Gradient], backward: int) -> _Piece:
    found: dict[str, Part] = {}
    squares = []
    for gradient in gradients:
        for part in gradient.parts:
            if part.backward == backward and gradient.summary is not None:
                found[gradient.name] = part
                squares.append(_square(gradient.summary, part.rms))
    return _Piece(rank=rank, square_norm=math.fsum(squares), numbers=_numbers(found))


def _square(like: Summary, rms: float) -> float:
    return rms**2 * math.prod(like.shape)


def _numbers(tensors: Mapping[str, Summary | Part]) -> Numbers:
    return {
        (name, i): value
        for name, tensor in tensors.items()
        for i, value in enumerate((tensor.mean, *tensor.sample))
    }


def _factor(pieces: Sequence[Numbers], applied: Numbers) -> float | None:
    """The a of applied = a · sum of pieces, by least squares; None where that does not hold."""
    sums: dict[tuple[str, int], list[float]] = defaultdict(list)
    for numbers in pieces:
        for key, value in numbers.items():
            sums[key].append(value)
    # of a shard there are fewer elements
    last = min(max(place for _, place in numbers) for numbers in pieces)
    pairs = [(math.fsum(sums[key]), value) for key, value in applied.items() if key[1] <= last]
    square = math.fsum(x * x for x, _ in pairs)
    size = math.sqrt(math.fsum(y * y for _, y in pairs))
    if not (0 < square < math.inf and 0 < size < math.inf):
        return None
    factor = math.fsum(x * y for x, y in pairs) / square
    off = math.sqrt(math.fsum((y - factor * x) ** 2 for x, y in pairs))
    return factor if factor > 0 and off <= TOLERANCE * size else None


def _clipped(step: RankStep) -> float:
    """By what clipping multiplied the gradient."""
    clips = step.row.clips if step.row is not None else ()
    norms = [(clip.limit, clip.norm) for clip in clips if clip.kind == "clip_grad_norm_"]
    return math.prod(min(1.0, limit / (norm + _NUDGE)) for limit, norm in norms if norm is not None)


def _are_means(steps: Iterable[RankStep]) -> bool:
    """Whether every loss function that was trained with averages."""
    kinds = {each.reduction for step in steps for each in step.criteria if each.has_gradients}
    return kinds == {"mean"}


def _are_shared(trace: Trace, number: int) -> bool:
    """Whether more than half of a step's examples are those of another rank too."""
    parts = trace.examples_by_rank(number)
    if parts is None:
        return False
    ranks = Counter(example for part in parts.values() for example in part)
    shared = sum(count for count in ranks.values() if count > 1)
    return 2 * shared > sum(ranks.values())
