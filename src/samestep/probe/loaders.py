"""Loaders: which examples torch's DataLoaders draw and hand out.

The iterators and the property that names their sampler are private to torch, and have been the same since
its release 1.2; a public way to see the draws of a loader with workers does not exist.
"""

import weakref
from collections.abc import Callable
from itertools import count
from threading import local
from typing import Any, Protocol

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from samestep.experiment import Batches
from samestep.probe.draws import Drawn, Draws, Known
from samestep.probe.fetches import NOT_FORKED, Fetches, are_workers_forked
from samestep.probe.generators import Generators
from samestep.probe.loader_rows import batch_row, loader_row, pass_end_row, pass_row
from samestep.probe.origins import Origins
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch
from samestep.record import is_kept


class Holder(Protocol):
    """What iterates over `loader` for the program, and hands out its batches when it wants to.

    One that is `alone` tells of passes and batches itself, and the loader's own are not looked at.
    """

    loader: Any
    alone: bool
    going: tuple[Known, Draws] | None


class Loaders:
    """Observes every DataLoader of the process that is iterated over; `batches` take the place of its own."""

    def __init__(self, watch: Watch, origins: Origins, fetches: Fetches, batches: Batches) -> None:
        self._watch = watch
        self._origins = origins
        self._fetches = fetches
        self._batches = batches
        self._replaced = Replacements()
        self._known: weakref.WeakKeyDictionary[Any, Known] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[Any, tuple[Known, Draws, bool]] = weakref.WeakKeyDictionary()
        self._begun: dict[int, Known] = {}
        self._count = count()
        self._here = local()

    def install(self) -> None:
        self._replaced.wrap(DataLoader, "__iter__", self._around_iter)
        self._replaced.wrap(_BaseDataLoaderIter, "__next__", self._around_next)
        sampler = vars(DataLoader)["_index_sampler"]
        self._replaced.put(DataLoader, "_index_sampler", property(self._around_sampler(sampler.fget)))

    def uninstall(self) -> None:
        self._replaced.undo()
        for known in self._begun.values():
            for _, draws in known.going:
                self.end(known, draws)

    def hold(self, holder: Holder | None) -> Holder | None:
        """From now on in this thread batches are asked for by `holder`; returns who did before."""
        before: Holder | None = getattr(self._here, "holder", None)
        self._here.holder = holder
        return before

    def meet(self, loader: Any) -> Known:
        """The number and passes of a loader, which is written down when it is first met."""
        known = self._known.get(loader)
        if known is None:
            known = self._known[loader] = Known(next(self._count), self._batches)
            if is_kept(known.number):
                row = loader_row(known.number, loader, self._origins.of(loader))
                self._watch.write(row, flush=True)
            if loader.num_workers and not are_workers_forked(loader):
                self._watch.trouble("workers", RuntimeError(NOT_FORKED))
        return known

    def begin(self, known: Known, draws: Draws, loader: Any, iterator: Any, before: Generators) -> None:
        """A pass begins: an iterator over the loader was made, and the generators were `before` that."""
        self._begun[known.number] = known
        self._leave(known, iterator)
        known.num_passes += 1
        draws.number = known.num_passes
        known.going.append((weakref.ref(iterator), draws))
        if is_kept(known.num_passes):
            row = pass_row(self._watch.step, known, loader, iterator, before.described())
            self._watch.write(row)

    def hand_out(self, known: Known, draws: Draws, data: Any) -> None:
        """The program is given the next batch."""
        self._watch.event("batch")
        indices, moved = draws.hand_out()
        if self._watch.is_looked_into:
            self._watch.write_some(batch_row(self._watch.step, known, draws, indices, moved, data))

    def end(self, known: Known, draws: Draws, is_exhausted: bool = False) -> None:
        """A pass ends; told again, it is not heard."""
        if draws.is_ended:
            return
        draws.is_ended = True
        if is_kept(draws.number):
            self._watch.write(pass_end_row(self._watch.step, known, draws, is_exhausted), flush=True)

    def _around_sampler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def index_sampler(loader: Any) -> Any:
            sampler = original(loader)
            known: Known | None = getattr(self._here, "making", None)
            return sampler if known is None else Drawn(sampler, known.begin)

        return index_sampler

    def _around_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iter_of(loader: Any) -> Any:
            watch = self._watch
            holder = self._holder_of(loader)
            if (
                not watch.is_awake
                or getattr(self._here, "making", None) is not None
                or (holder is not None and holder.alone)
            ):
                return original(loader)
            before: Generators | None = None
            with watch.looking("a loader") as able:
                if able:
                    self._here.making = self.meet(loader)
                    self._fetches.begin(self._here.making.number, self._here.making.num_passes + 1)
                    before = Generators()
            known: Known | None = getattr(self._here, "making", None)
            depth = watch.clock.enter("data")
            try:
                iterator = original(loader)
            finally:
                self._here.making = None
                self._fetches.done()
                watch.clock.leave(depth)
            with watch.looking("a pass"):
                if known is not None and known.draws is not None and before is not None:
                    self._passes[iterator] = known, known.draws, holder is not None
                    self.begin(known, known.draws, loader, iterator, before)
                    if holder is not None:
                        holder.going = known, known.draws
            return iterator

        return iter_of

    def _around_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_of(iterator: Any) -> Any:
            watch = self._watch
            going = self._passes.get(iterator)
            if not watch.is_awake or going is None:
                return original(iterator)
            known, draws, is_held = going
            depth = watch.clock.enter("data")
            try:
                data = original(iterator)
            except StopIteration:
                if not is_held:
                    with watch.looking("the end of a pass"):
                        self.end(known, draws, is_exhausted=True)
                raise
            finally:
                watch.clock.leave(depth)
            with watch.looking("a batch"):
                draws.fetched(self._fetches.take())
                if not is_held:
                    self.hand_out(known, draws, data)
            return data

        return next_of

    def _holder_of(self, loader: Any) -> Holder | None:
        holder: Holder | None = getattr(self._here, "holder", None)
        return holder if holder is not None and holder.loader is loader else None

    def _leave(self, known: Known, iterator: Any) -> None:
        """End the passes that were left early: their iterator is gone, or begins another."""
        for where, draws in known.going:
            if where() is None or where() is iterator:
                self.end(known, draws)
        known.going = [(where, draws) for where, draws in known.going if not draws.is_ended]
