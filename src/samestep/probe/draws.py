"""Draws: a sampler as an iterator sees it, with what was drawn from it set aside until it is handed out."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from samestep.observations import multiset_print


class Draws:
    """The indices of one pass over a loader, from draw to hand-out; some draws may never be handed out."""

    def __init__(self) -> None:
        self.number = 0
        self.num_batches = 0
        self.num_examples: int | None = 0
        self.multiset: int | None = 0
        self.is_ended = False
        self.waiting: deque[tuple[int, ...] | None] = deque()

    def hand_out(self) -> tuple[int, ...] | None:
        """The indices of the next batch; loaders hand batches out in the order of their draws."""
        indices = self.waiting.popleft() if self.waiting else None
        self.num_batches += 1
        if indices is None:
            self.num_examples = self.multiset = None
        elif self.num_examples is not None and self.multiset is not None:
            self.num_examples += len(indices)
            self.multiset = (self.multiset + multiset_print(indices)) % 2**64
        return indices


class Known:
    """A loader that was seen: its number and its passes; `going` are those that have not ended yet."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.num_passes = 0
        self.draws: Draws | None = None
        self.going: list[tuple[weakref.ref[Any], Draws]] = []

    def begin(self) -> Draws:
        """Draws of a pass that may begin: an iterator with workers asks twice, and uses the second."""
        self.draws = Draws()
        return self.draws


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

    def __iter__(self) -> "_Drawing":
        return self

    def __next__(self) -> Any:
        drawn = next(self._inner)
        self._draws.waiting.append(_indices(drawn))
        return drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _indices(drawn: Any) -> tuple[int, ...] | None:
    """Whole numbers as a tuple; None for anything else that a sampler may yield."""
    try:
        many = drawn.tolist() if hasattr(drawn, "tolist") else drawn
        numbers = tuple(many) if isinstance(many, list | tuple) else (many,)
        return tuple(int(number.__index__()) for number in numbers)
    except Exception:
        return None
