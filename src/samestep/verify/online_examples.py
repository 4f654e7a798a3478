"""Whether every example is trained on exactly once: the indices that the ranks' loaders hand out.

Only loaders that all ranks train from are judged, and only where their data sets hold the same: ranks that
have a part of the data each count its examples from 0, too. What a sampler of the user's own hands out is not
known beforehand; it has to be the whole data set only if it was so twice.
"""

from collections import Counter
from collections.abc import Mapping

from samestep.findings import Finding
from samestep.observed import Batch, PassEnd, Row, Step
from samestep.verify.online_loaders import Shared, SharedLoaders, whole_multiset
from samestep.verify.online_words import ranks_text, some

MOST_WAITING = 64
ENOUGH_EQUAL = 8
"""Indices that two ranks must have in common, one for one, before chance is out of the question."""
ENOUGH_LOOKS = 3
"""Looks in a row at which two ranks must have had equal data, where there are no indices."""
MOST_COUNTED = 20_000_000
"""Examples of a data set up to which the print of all of them is worked out."""
_WHOLE_TWICE = 2
_SHARE_OUT = (
    "Give each rank examples of its own: DistributedSampler with set_epoch, or world.loader of Samestep."
)
_DIVIDE = (
    "Share out the examples without padding and without a tail left over (world.loader of Samestep does), or "
    "choose sizes that the number of ranks divides."
)


class ExamplesWatch:
    """Judges the batches of a step once all ranks have taken it, and a pass once all ranks have ended it."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._loaders = SharedLoaders()
        self._steps: dict[int, list[tuple[int, Shared, Batch]]] = {}
        self._taken: dict[int, set[int]] = {}

    def take(self, rank: int, row: Row) -> list[Finding]:
        """What a row of a rank shows, if it was the last one missing."""
        if self._world_size == 1:
            return []
        self._loaders.take(rank, row)
        if isinstance(row, Batch | PassEnd) and (shared := self._loaders.of(rank, row.loader)) is not None:
            if isinstance(row, PassEnd):
                return self._end_pass(rank, shared, row)
            self._steps.setdefault(row.step, []).append((rank, shared, row))
        elif isinstance(row, Step):
            return self._end_step(rank, row.step)
        return []

    def _end_step(self, rank: int, step: int) -> list[Finding]:
        taken = self._taken.setdefault(step, set())
        taken.add(rank)
        if len(taken) < self._world_size:
            for waiting in (self._taken, self._steps):
                if len(waiting) > MOST_WAITING:
                    del waiting[next(iter(waiting))]
            return []
        del self._taken[step]
        batches: dict[int, tuple[Shared, dict[int, list[Batch]]]] = {}
        for each, shared, row in self._steps.pop(step, []):
            batches.setdefault(id(shared), (shared, {}))[1].setdefault(each, []).append(row)
        found = []
        for shared, of in batches.values():
            is_complete = len(of) == len(shared.trained_by) == self._world_size
            if is_complete and not shared.is_same_told:
                found += _judge_step(step, shared, dict(sorted(of.items())))
        return found

    def _end_pass(self, rank: int, shared: Shared, row: PassEnd) -> list[Finding]:
        of = shared.passes.setdefault(row.number, {})
        of[rank] = row
        if len(of) < self._world_size:
            if len(shared.passes) > MOST_WAITING:
                del shared.passes[next(iter(shared.passes))]
            return []
        del shared.passes[row.number]
        is_whole = all(end.is_exhausted and end.multiset is not None for end in of.values())
        # a loader that some ranks make anew more often may be taken for another
        is_together = len({end.step for end in of.values()}) == 1
        is_trained = len(shared.trained_by) == self._world_size and shared.is_one_data_set
        if not (is_whole and is_together and is_trained) or shared.is_same_told:
            return []
        return _judge_pass(row.number, shared, dict(sorted(of.items())))


def _judge_step(step: int, shared: Shared, of: Mapping[int, list[Batch]]) -> list[Finding]:
    has_indices = all(batch.indices is not None for batches in of.values() for batch in batches)
    if has_indices and not shared.is_one_data_set:
        return []
    first, *others = of
    for other in others:
        if has_indices:
            mine, theirs = _drawn(of[first]), _drawn(of[other])
            num_new = len(mine) if sorted(mine) == sorted(theirs) else 0
            is_enough, count = ENOUGH_EQUAL, len(mine)
        else:
            data = [[batch.tensors for batch in of[rank]] for rank in (first, other)]
            num_new = int(data[0] == data[1] and any(data[0]))
            is_enough, count = ENOUGH_LOOKS, 0
        shared.num_equal[first, other] = shared.num_equal[first, other] + num_new if num_new else 0
        if shared.num_equal[first, other] >= is_enough:
            return _same(shared, [first, other], count, f"at step {step}", {"step": step})
    is_one_pass = len({batch.number for batches in of.values() for batch in batches}) == 1
    if has_indices and is_one_pass and shared.is_once_each and not any(shared.num_equal.values()):
        return _overlap(step, shared, {rank: _drawn(batches) for rank, batches in of.items()})
    return []


def _overlap(step: int, shared: Shared, drawn: Mapping[int, list[int]]) -> list[Finding]:
    counts = Counter(index for indices in drawn.values() for index in set(indices))
    twice = sorted(index for index, count in counts.items() if count > 1)
    if not twice or shared.is_count_told:
        return []
    shared.is_count_told = True
    ranks = [rank for rank, indices in drawn.items() if set(indices) & set(twice)]
    return [
        Finding(
            cause="examples-repeated",
            message=(
                f"At step {step} {ranks_text(ranks)} had the same example{'s' * (len(twice) > 1)} "
                f"{some(twice)} of {shared.data}; {shared.since}."
            ),
            evidence={"step": step, "ranks": ranks, "examples": twice[:16], "loader": shared.row.where},
            fix=_SHARE_OUT,
        )
    ]


def _same(
    shared: Shared, ranks: list[int], count: int | None, when: str, evidence: Mapping[str, object]
) -> list[Finding]:
    shared.is_same_told = True
    what = f"the same {count} examples" if count else "the same data"
    return [
        Finding(
            cause="same-examples-on-every-rank",
            message=(
                f"{ranks_text(ranks).capitalize()} trained on {what} of {shared.data} {when}: work is done "
                "more than once."
            ),
            evidence={
                "ranks": ranks,
                **evidence,
                "sampler": shared.row.sampler,
                "loader": shared.row.where,
            },
            fix=_SHARE_OUT,
        )
    ]


def _judge_pass(number: int, shared: Shared, of: Mapping[int, PassEnd]) -> list[Finding]:
    prints = Counter(end.multiset for end in of.values() if (end.num_examples or 0) >= ENOUGH_EQUAL)
    if prints and prints.most_common(1)[0][1] > 1:
        common = prints.most_common(1)[0][0]
        ranks = [rank for rank, end in of.items() if end.multiset == common]
        count = of[ranks[0]].num_examples
        return _same(shared, ranks, count, f"in pass {number}", {"pass": number})
    size = shared.row.num_examples
    total = sum(end.num_examples or 0 for end in of.values())
    if size is None:
        return []
    multiset = sum(end.multiset or 0 for end in of.values()) % 2**64
    if total == size and (size > MOST_COUNTED or multiset == whole_multiset(size)):
        shared.num_whole += 1
        shared.last_whole = number
        return []
    if shared.is_count_told or not (shared.is_once_each or shared.num_whole >= _WHOLE_TWICE):
        return []
    may_drop = shared.num_may_drop
    if total < size and (may_drop is None or size - total <= may_drop):
        return []
    shared.is_count_told = True
    what = f"{abs(total - size)} {'more' if total > size else 'fewer'} than there are"
    if total == size:
        what = "but not each once"
    return [
        Finding(
            cause="examples-dropped" if total < size else "examples-repeated",
            message=(
                f"In pass {number} the ranks took {total} examples of {shared.data}, {what}; {shared.since}."
            ),
            evidence={
                "pass": number,
                "step": of[min(of)].step,
                "examples": total,
                "num_examples": size,
                "by_rank": [end.num_examples for end in of.values()],
                "sampler": shared.row.sampler,
                "loader": shared.row.where,
            },
            fix=_DIVIDE,
        )
    ]


def _drawn(batches: list[Batch]) -> list[int]:
    return [index for batch in batches for index in batch.indices or ()]
