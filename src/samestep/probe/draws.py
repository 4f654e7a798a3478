"""Draws: a sampler as an iterator sees it, with what was drawn from it set aside until it is handed out.

Knows the way of indices from draw to hand-out, and how given batches take the place of a sampler's own.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from samestep.experiment import Batches, pass_key
from samestep.observations import multiset_print


class Draws:
    """The indices of one pass over a loader: drawn and `waiting`, then fetched and `ready`, then handed out.

    Some draws may never be handed out. `given` are the batches to hand out instead of the sampler's own.
    """

    def __init__(self, given: tuple[tuple[int, ...], ...] | None = None) -> None:
        self.given = given
        self.number = 0
        self.num_batches = 0
        self.num_examples: int | None = 0
        self.multiset: int | None = 0
        self.is_ended = False
        self.waiting: deque[tuple[int, ...] | None] = deque()
        self.ready: deque[tuple[tuple[int, ...] | None, tuple[str, ...]]] = deque()

    def fetched(self, moved: tuple[str, ...]) -> None:
        """An iterator has fetched the next batch, in the order of draws, and moved generators by that."""
        self.ready.append((self.waiting.popleft() if self.waiting else None, moved))

    def hand_out(self) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
        """The indices of the next batch, and the generators that fetching it moved."""
        indices, moved = self.ready.popleft() if self.ready else (None, ())
        self.num_batches += 1
        if indices is None:
            self.num_examples = self.multiset = None
        elif self.num_examples is not None and self.multiset is not None:
            self.num_examples += len(indices)
            self.multiset = (self.multiset + multiset_print(indices)) % 2**64
        return indices, moved


class Known:
    """A loader that was seen: its number and its passes; `going` are those that have not ended yet."""

    def __init__(self, number: int, batches: Batches) -> None:
        self.number = number
        self.num_passes = 0
        self.draws: Draws | None = None
        self.going: list[tuple[weakref.ref[Any], Draws]] = []
        self._batches = batches

    def begin(self) -> Draws:
        """Draws of a pass that may begin: an iterator with workers asks twice, and uses the second."""
        self.draws = Draws(self.given())
        return self.draws

    def given(self) -> tuple[tuple[int, ...], ...] | None:
        """The batches that the pass which may begin is to hand out."""
        return self._batches.get(pass_key(self.number, self.num_passes + 1))


class Drawn:
    """Stands before a sampler while a loader makes an iterator; all but iteration goes to the sampler."""

    def __init__(self, sampler: Any, begin: Callable[[], Draws]) -> None:
        self._sampler = sampler
        self._begin = begin

    def __iter__(self) -> "_Drawing":
        return _Drawing(iter(self._sampler), self._begin())

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _Drawing:
    def __init__(self, inner: Iterator[Any], draws: Draws) -> None:
        self._inner = inner
        self._draws = draws
        self._source = inner if draws.given is None else _in_place_of(inner, draws.given)

    def __iter__(self) -> "_Drawing":
        return self

    def __next__(self) -> Any:
        drawn = next(self._source)
        self._draws.waiting.append(_indices(drawn))
        return drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _in_place_of(own: Iterator[Any], given: tuple[tuple[int, ...], ...]) -> Iterator[Any]:
    """Given batches; the sampler's own are drawn all the same, so that generators move as they would.

    A sampler that yields one index at a time, for a loader that makes no batches, is given single indices.
    One that yields something else than indices keeps its own.
    """
    first = next(own, None)
    if first is not None and _plain_indices(first) is None:
        yield first
        yield from own
        return
    is_single = not isinstance(first, list | tuple) and getattr(first, "ndim", 0) == 0 and first is not None
    batches = [index for batch in given for index in batch] if is_single else [list(batch) for batch in given]
    for batch in batches:
        yield batch
        next(own, None)


def _indices(drawn: Any) -> tuple[int, ...] | None:
    """The examples that something drawn asks for; Samestep's own loaders ask for shares of a batch."""
    shares, parts = getattr(drawn, "shares", None), getattr(drawn, "indices", None)
    if isinstance(shares, list) and isinstance(parts, list):
        # a share of none may have an index all the same, to keep its rank company
        drawn = [index for share, part in zip(shares, parts, strict=True) if share.count for index in part]
    return _plain_indices(drawn)


def _plain_indices(drawn: Any) -> tuple[int, ...] | None:
    """Whole numbers as a tuple; None for anything else that a sampler may yield."""
    try:
        many = drawn.tolist() if hasattr(drawn, "tolist") else drawn
        numbers = tuple(many) if isinstance(many, list | tuple) else (many,)
        if set(map(type, numbers)) <= {int}:  # as most samplers yield them
            return numbers
        return tuple(int(number.__index__()) for number in numbers)
    except Exception:
        return None
