"""Loaders in the cheap mode: indices of some batches, prints where there are none, what data sets hold."""

from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from samestep.experiment import Batches
from samestep.observations import multiset_print
from samestep.observed import Batch
from samestep.probe.draws import Draws, Known
from samestep.probe.fetches import Fetches
from samestep.probe.loader_rows import loader_row
from samestep.probe.loaders import Loaders
from samestep.probe.origins import Origins
from samestep.probe.summaries import bits_print, tensors_in
from samestep.probe.watch import Watch
from samestep.record import is_kept

MOST_BATCHES = 16
"""Batches of one loader that are written down in one step, which may have a whole evaluation in it."""
MOST_INDICES = 64
MOST_UNSETTLED = 8192
MOST_ROWS = 4
MOST_ELEMENTS = 4096
MOST_DEPTH = 4
MOST_ITEMS = 64


class CheapLoaders(Loaders):
    """Writes down the first indices of a batch, and of one without indices how its first examples look."""

    def __init__(self, watch: Watch, origins: Origins, fetches: Fetches, batches: Batches) -> None:
        super().__init__(watch, origins, fetches, batches)
        self._written_in = 0
        self._written: Counter[int] = Counter()

    def meet(self, loader: Any) -> Known:
        known = self._known.get(loader)
        if known is None:
            known = self._known[loader] = _CheapKnown(next(self._count), self._batches)
            if is_kept(known.number):
                row = loader_row(known.number, loader, self._origins.of(loader))
                row = replace(row, num_drawn=_length(loader.sampler), contents=contents_print(loader.dataset))
                self._watch.write(row, flush=True)
        return known

    def hand_out(self, known: Known, draws: Draws, data: Any) -> None:
        watch = self._watch
        watch.event("batch")
        indices, _ = draws.hand_out()
        if not watch.is_looked_into or not self._has_room(known.number):
            return
        row = Batch(
            step=watch.step,
            loader=known.number,
            number=draws.number,
            batch=draws.num_batches,
            indices=None if indices is None else indices[:MOST_INDICES],
            num_examples=None if indices is None else len(indices),
            print="",
            tensors=_looks(data) if indices is None else (),
            examples=(),
        )
        watch.write_some(row)

    def end(self, known: Known, draws: Draws, is_exhausted: bool = False) -> None:
        if isinstance(draws, _CheapDraws):
            draws.settle()
        super().end(known, draws, is_exhausted)

    def _has_room(self, number: int) -> bool:
        if self._written_in != self._watch.step:
            self._written_in, self._written = self._watch.step, Counter()
        self._written[number] += 1
        return self._written[number] <= MOST_BATCHES


class _CheapDraws(Draws):
    """Works out the print of what was handed out for many batches at once."""

    def __init__(self) -> None:
        super().__init__()
        self._unsettled: list[int] = []

    def hand_out(self) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
        indices, moved = self.ready.popleft() if self.ready else (None, ())
        self.num_batches += 1
        if indices is None:
            self.num_examples = self.multiset = None
        elif self.num_examples is not None:
            self.num_examples += len(indices)
            self._unsettled += indices
            if len(self._unsettled) >= MOST_UNSETTLED:
                self.settle()
        return indices, moved

    def settle(self) -> None:
        """Bring `multiset` up to date."""
        if self.multiset is not None and self._unsettled:
            self.multiset = (self.multiset + multiset_print(self._unsettled)) % 2**64
        self._unsettled = []


class _CheapKnown(Known):
    def begin(self) -> Draws:
        self.draws = _CheapDraws()
        return self.draws


def contents_print(dataset: Any) -> str:
    """A digest of what a data set holds: settings, shapes, the beginnings of its arrays and lists.

    Equal data sets of two processes have equal prints. Different ones have different prints unless they
    differ only in what is beyond the beginnings, or in what they read later.
    """
    digest = blake2b(digest_size=8)
    _feed(dataset, digest, MOST_DEPTH, set())
    return digest.hexdigest()


def _feed(value: Any, digest: Any, depth: int, seen: set[int]) -> None:
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, bool | int | float | complex | str | bytes) or value is None:
        digest.update(repr(value)[:MOST_ELEMENTS].encode("utf-8", "backslashreplace"))
    elif isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.device.type == "cpu" and value.numel():
            digest.update(bits_print(value.detach().reshape(-1)[:MOST_ELEMENTS]).encode())
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode())
        if value.dtype != object:
            digest.update(value.flat[:MOST_ELEMENTS].tobytes())
    elif depth and id(value) not in seen:
        seen.add(id(value))
        # only what Python itself holds: containers of others may fetch what they are asked for
        if type(value) is dict:
            items = list(islice(value.items(), MOST_ITEMS))
        elif type(value) in (list, tuple, range):
            items = [(len(value), item) for item in value[:MOST_ITEMS]]
        else:
            items = list(getattr(value, "__dict__", {}).items())[:MOST_ITEMS]
        for key, item in items:
            digest.update(f"{key} ".encode("utf-8", "backslashreplace"))
            _feed(item, digest, depth - 1, seen)


def _looks(data: Any) -> tuple[str, ...]:
    """Prints of the first rows of a batch's tensors; one that is the same all over tells nothing."""
    found = []
    for tensor in tensors_in(data):
        if tensor.ndim and tensor.device.type == "cpu" and tensor.numel():
            head = tensor[:MOST_ROWS].reshape(min(len(tensor), MOST_ROWS), -1)[:, :MOST_ELEMENTS]
            if bool((head != head.reshape(-1)[0]).any()):
                found.append(bits_print(head))
    return tuple(found)


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:
        return None
