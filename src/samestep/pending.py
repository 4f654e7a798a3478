"""Collectives under way, and how they are waited for; knows nothing of who takes part in them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from samestep import phase
from samestep.window import Slices


class Pending(Protocol):
    """A collective under way; its tensor must not be read before `wait` returns."""

    def wait(self) -> object: ...


class Done:
    """The collective over one rank: over before it began."""

    def wait(self) -> None:
        return None


DONE = Done()


class Watched:
    """A collective whose `wait` is told as such to whoever watches this rank."""

    __slots__ = ("_work",)

    def __init__(self, work: Pending) -> None:
        self._work = work

    def wait(self) -> None:
        with phase.waiting():
            self._work.wait()


class Later:
    """A collective through shared memory, which nobody works on in the background: it happens in `wait`."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def wait(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()


class All:
    """Several collectives under way, as one."""

    def __init__(self, parts: Sequence[Pending]) -> None:
        self._parts = parts

    def wait(self) -> None:
        for part in self._parts:
            part.wait()


class Flat:
    """Slices end to end in one buffer, in rows as long as the longest: what a network takes."""

    def __init__(self, slices: Slices) -> None:
        length = max(sum(map(len, parts)) for parts in slices)
        like = slices[0][0]
        self.buffer = torch.zeros(len(slices) * length, dtype=like.dtype, device=like.device)
        self.rows = self.buffer.split(length)
        self._parts = slices
        self._places = [
            row[: sum(map(len, parts))].split([len(part) for part in parts])
            for row, parts in zip(self.rows, slices, strict=True)
        ]

    def take(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            torch._foreach_copy_(list(self._places[rank]), list(self._parts[rank]))

    def give(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            torch._foreach_copy_(list(self._parts[rank]), list(self._places[rank]))
