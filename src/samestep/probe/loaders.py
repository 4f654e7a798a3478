"""Loaders: which examples torch's DataLoaders draw and hand out.

The iterators and the property that names their sampler are private to torch, and have been the same since
its release 1.2; a public way to see the draws of a loader with workers does not exist.
"""

import weakref
from collections.abc import Callable
from itertools import count
from threading import local
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from samestep.data.fingerprint import fingerprint
from samestep.observed import Batch, Loader, Pass, PassEnd, Randomness
from samestep.probe.draws import Drawn, Draws, Known
from samestep.probe.replacing import Replacements
from samestep.probe.summaries import bits_print, example_prints, randomness, settings_of, tensors_in
from samestep.probe.watch import Watch
from samestep.record import is_kept


class Loaders:
    """Observes every DataLoader of the process that is iterated over."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._known: weakref.WeakKeyDictionary[Any, Known] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[Any, tuple[Known, Draws]] = weakref.WeakKeyDictionary()
        self._count = count()
        self._making = local()

    def install(self) -> None:
        self._replaced.wrap(DataLoader, "__iter__", self._around_iter)
        self._replaced.wrap(_BaseDataLoaderIter, "__next__", self._around_next)
        sampler = vars(DataLoader)["_index_sampler"]
        self._replaced.put(DataLoader, "_index_sampler", property(self._around_sampler(sampler.fget)))

    def uninstall(self) -> None:
        self._replaced.undo()
        for known, draws in list(self._passes.values()):
            self._end(known, draws)

    def _around_sampler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def index_sampler(loader: Any) -> Any:
            sampler = original(loader)
            known: Known | None = getattr(self._making, "loader", None)
            return sampler if known is None else Drawn(sampler, known.begin)

        return index_sampler

    def _around_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iter_of(loader: Any) -> Any:
            watch = self._watch
            if not watch.is_awake or getattr(self._making, "loader", None) is not None:
                return original(loader)
            random = None
            with watch.looking("a loader") as able:
                if able:
                    self._making.loader = self._meet(loader)
                    random = randomness()
            known: Known | None = getattr(self._making, "loader", None)
            depth = watch.clock.enter("data")
            try:
                iterator = original(loader)
            finally:
                self._making.loader = None
                watch.clock.leave(depth)
            with watch.looking("a pass"):
                if known is not None and known.draws is not None and random is not None:
                    self._leave(known, iterator)
                    known.num_passes += 1
                    known.draws.number = known.num_passes
                    self._passes[iterator] = known, known.draws
                    known.going.append((weakref.ref(iterator), known.draws))
                    if is_kept(known.num_passes):
                        watch.write(_pass(watch.step, known, loader, iterator, random))
            return iterator

        return iter_of

    def _around_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_of(iterator: Any) -> Any:
            watch = self._watch
            if not watch.is_awake:
                return original(iterator)
            depth = watch.clock.enter("data")
            try:
                data = original(iterator)
            except StopIteration:
                with watch.looking("the end of a pass"):
                    known, draws = self._passes[iterator]
                    self._end(known, draws, is_exhausted=True)
                raise
            finally:
                watch.clock.leave(depth)
            with watch.looking("a batch"):
                watch.event("batch")
                self._hand_out(iterator, data)
            return data

        return next_of

    def _meet(self, loader: Any) -> Known:
        known = self._known.get(loader)
        if known is None:
            known = self._known[loader] = Known(next(self._count))
            batch_sampler = getattr(loader, "batch_sampler", None)
            is_iterable = isinstance(loader.dataset, IterableDataset)
            row = Loader(
                loader=known.number,
                dataset=type(loader.dataset).__name__,
                num_examples=None if is_iterable else _length(loader.dataset),
                is_iterable=is_iterable,
                sampler=type(loader.sampler).__name__,
                sampler_settings=_sampler_settings(loader),
                batch_sampler=None if batch_sampler is None else type(batch_sampler).__name__,
                batch_size=getattr(loader, "batch_size", None) or getattr(batch_sampler, "batch_size", None),
                drop_last=bool(getattr(loader, "drop_last", False)),
                num_workers=loader.num_workers,
                is_in_order=getattr(loader, "in_order", True),
                has_generator=loader.generator is not None,
                has_worker_init=loader.worker_init_fn is not None,
            )
            if is_kept(known.number):
                self._watch.write(row, flush=True)
        return known

    def _hand_out(self, iterator: Any, data: Any) -> None:
        known, draws = self._passes[iterator]
        indices = draws.hand_out()
        if not self._watch.is_looked_into:
            return
        tensors = tensors_in(data)
        rows = [len(tensor) for tensor in tensors if tensor.ndim]
        num_examples = len(indices) if indices is not None else (rows[0] if rows else None)
        row = Batch(
            step=self._watch.step,
            loader=known.number,
            number=draws.number,
            batch=draws.num_batches,
            indices=indices,
            num_examples=num_examples,
            print=fingerprint(data),
            tensors=tuple(bits_print(tensor) for tensor in tensors),
            examples=example_prints(tensors, num_examples),
        )
        self._watch.write_some(row)

    def _leave(self, known: Known, iterator: Any) -> None:
        """End the passes that were left early: their iterator is gone, or begins another."""
        for where, draws in known.going:
            if where() is None or where() is iterator:
                self._end(known, draws)
        known.going = [(where, draws) for where, draws in known.going if not draws.is_ended]

    def _end(self, known: Known, draws: Draws, is_exhausted: bool = False) -> None:
        if draws.is_ended:
            return
        draws.is_ended = True
        if is_kept(draws.number):
            row = PassEnd(
                step=self._watch.step,
                loader=known.number,
                number=draws.number,
                num_batches=draws.num_batches,
                num_examples=draws.num_examples,
                multiset=draws.multiset,
                is_exhausted=is_exhausted,
            )
            self._watch.write(row, flush=True)


def _pass(step: int, known: Known, loader: Any, iterator: Any, random: Randomness) -> Pass:
    return Pass(
        step=step,
        loader=known.number,
        number=known.num_passes,
        base_seed=getattr(iterator, "_base_seed", None),
        sampler_settings=_sampler_settings(loader),
        random=random,
    )


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:
        return None


def _sampler_settings(loader: Any) -> dict[str, str]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = settings_of(batch_sampler, most=16) if batch_sampler is not None else {}
    return inner | settings_of(loader.sampler, most=16)
