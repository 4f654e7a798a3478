"""Replay: the global batches of a run on several ranks, as batches for one."""

import random
from collections import defaultdict
from itertools import pairwise

from samestep.experiment import Batches, pass_key
from samestep.verify.trace import Taken, Trace


def replayed_batches(candidate: Trace, reference: Trace, *, order: int = 0) -> Batches:
    """The candidate's global batches, as the batches that one rank is to be given in their place.

    A batch keeps its examples, in the `order` of that number: 0 is the candidate's own, 1 the reverse. A step
    is cut into as many batches as the reference takes in that step, so that a program that accumulates less
    on more ranks is given what it expects on one.
    """
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for number in range(1, candidate.num_full + 1):
        taken = candidate.taken(number)
        if taken is None:
            return {}
        theirs = reference.first.steps.get(number)
        num_batches = len(theirs.batches) if theirs is not None and theirs.batches else len(taken[0])
        if all(len(parts) == num_batches for parts in taken):
            groups = [[parts[j] for parts in taken] for j in range(num_batches)]
        else:
            flat = [Taken(t.loader, t.number, (i,)) for parts in taken for t in parts for i in t.indices]
            bounds = [len(flat) * j // max(1, num_batches) for j in range(num_batches + 1)]
            groups = [flat[start:stop] for start, stop in pairwise(bounds)]
        for group in groups:
            indices = tuple(index for part in group for index in part.indices)
            if indices:
                key = pass_key(group[0].loader, group[0].number)
                found[key].append(_arranged(indices, order))
    return {key: tuple(batches) for key, batches in found.items()}


def _arranged(indices: tuple[int, ...], order: int) -> tuple[int, ...]:
    if order < 2:
        return indices[::-1] if order else indices
    return tuple(random.Random(order).sample(indices, len(indices)))  # noqa: S311, any order will do
