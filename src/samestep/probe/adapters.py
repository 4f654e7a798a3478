"""Adapters: loaders of Accelerate, which iterate over a DataLoader and hand out its batches later.

They hold one batch back to know the last one, or let rank 0 read for all. What the program is given, and
when, is seen here.
"""

import sys
from collections.abc import Callable
from typing import Any

from samestep.probe.arrival import Arrival
from samestep.probe.draws import Draws, Known
from samestep.probe.generators import Generators
from samestep.probe.loaders import Loaders
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

_MODULE = "accelerate.data_loader"
_HANDS_ON = ("DataLoaderShard", "SkipDataLoader")
_SHARES_OUT = ("DataLoaderDispatcher",)


class Adapters:
    """Observes the iteration over Accelerate's loaders, once it is there."""

    def __init__(self, watch: Watch, loaders: Loaders) -> None:
        self._watch = watch
        self._loaders = loaders
        self._replaced = Replacements()
        self._arrival = Arrival(_MODULE, self._arrived)

    def install(self) -> None:
        self._arrival.install()

    def uninstall(self) -> None:
        self._arrival.uninstall()
        self._replaced.undo()

    def _arrived(self) -> None:
        with self._watch.looking("the loaders of Accelerate"):
            module = sys.modules[_MODULE]
            for name in (*_HANDS_ON, *_SHARES_OUT):
                self._replaced.wrap(getattr(module, name), "__iter__", self._around_iter)

    def _around_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iter_of(adapter: Any) -> Any:
            inner = original(adapter)
            return _Handing(inner, adapter, self._watch, self._loaders) if self._watch.is_awake else inner

        return iter_of


class _Handing:
    """An iterator over an adapter; what is asked of it besides goes to the one that it stands before."""

    def __init__(self, inner: Any, adapter: Any, watch: Watch, loaders: Loaders) -> None:
        self._inner = inner
        self._adapter = adapter
        self._watch = watch
        self._loaders = loaders
        self._num_to_skip: int = getattr(adapter, "skip_batches", 0)
        self.loader: Any = adapter.base_dataloader
        self.alone = type(adapter).__name__ in _SHARES_OUT
        self.going: tuple[Known, Draws] | None = None

    def __iter__(self) -> "_Handing":
        return self

    def __next__(self) -> Any:
        watch = self._watch
        if not watch.is_awake:
            return next(self._inner)
        if self.alone and self.going is None:
            with watch.looking("a pass of an adapter"):
                self._begin()
        before = self._loaders.hold(self)
        depth = watch.clock.enter("data")
        try:
            data = next(self._inner)
        except StopIteration:
            with watch.looking("the end of a pass of an adapter"):
                if self.going is not None:
                    self._loaders.end(*self.going, is_exhausted=True)
            raise
        finally:
            watch.clock.leave(depth)
            self._loaders.hold(before)
        with watch.looking("a batch of an adapter"):
            if self.going is not None:
                self._hand_out(*self.going, data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _begin(self) -> None:
        known = self._loaders.meet(self.loader)
        self.going = known, Draws()
        self._loaders.begin(known, self.going[1], self._adapter, self, Generators())

    def _hand_out(self, known: Known, draws: Draws, data: Any) -> None:
        for _ in range(0 if self.alone else self._num_to_skip):
            draws.ready.popleft()
        self._num_to_skip = 0
        self._loaders.hand_out(known, draws, data)
