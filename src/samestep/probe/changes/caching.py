"""Data that is cached: loaders hand out their first few batches again and again, and fetch no others.

Samplers are still drawn from, so that passes are as long as they were; data sets and workers are not asked.
A stream without a length, which nothing is drawn from, goes on for ever once it is cached.
"""

import copy
import weakref
from collections.abc import Callable
from itertools import chain
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from samestep.experiment import Experiment
from samestep.probe.origins import Origins
from samestep.probe.replacing import Replacements

NUM_BATCHES = 4
MOST_BYTES = 2**24


class DataCached:
    """Changes loaders that the experiment is meant for; of Samestep's own, those that are trained on."""

    def __init__(self, origins: Origins, experiment: Experiment) -> None:
        self._origins = origins
        self._experiment = experiment
        self._replaced = Replacements()
        self._caches: weakref.WeakKeyDictionary[Any, _Cache] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        self._replaced.wrap(DataLoader, "__iter__", self._around)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iter_of(loader: Any) -> Any:
            if not self._experiment.is_meant(self._origins.of(loader)) or not is_trained_on(loader):
                return original(loader)
            cache = self._caches.setdefault(loader, _Cache())
            return _Cached(loader, cache, lambda: original(loader))

        return iter_of


def is_trained_on(loader: Any) -> bool:
    """Whether a loader may be trained on; one of Samestep's own knows it if it is not."""
    for owner in (loader.batch_sampler, loader.dataset):
        cut = getattr(owner, "cut", None) or getattr(owner, "_cut", None)
        if cut is not None and getattr(cut, "train", None) is False:
            return False
    return True


class _Cache:
    """The first batches of a loader, in the order of all its passes; `is_full` once no more are fetched."""

    def __init__(self) -> None:
        self.batches: list[_Batch] = []
        self.stream_length: int | None = None
        """Batches of a pass over a stream, which no sampler tells; None if nobody does."""
        self._num_handed = 0

    @property
    def is_full(self) -> bool:
        return len(self.batches) >= NUM_BATCHES

    def keep(self, data: Any) -> None:
        self.batches.append(_Batch(data))

    def hand_out(self) -> Any:
        batch = self.batches[self._num_handed % len(self.batches)]
        self._num_handed += 1
        return batch.fresh()


class _Batch:
    """A batch as it was: the program may take its containers apart, and change its tensors in place.

    Tensors in plain memory are copied each time, unless they are large: a loader allocates every batch anew,
    and whether memory of that size comes and goes decides how the system's allocator treats all the rest. A
    step without it may take half as long again.
    """

    def __init__(self, data: Any) -> None:
        self._data = _copied(data, _light_copied)
        self._seen: dict[int, int] = {}
        self._kept: dict[int, Tensor] = {}
        _copied(self._data, self._keep)

    def fresh(self) -> Any:
        self._data = _copied(self._data, self._unchanged)
        return _copied(self._data, _light_copied)

    def _keep(self, tensor: Tensor) -> Tensor:
        if not _is_light(tensor):
            self._seen[id(tensor)] = tensor._version
            self._kept[id(tensor)] = tensor.clone()
        return tensor

    def _unchanged(self, tensor: Tensor) -> Tensor:
        # one that is in a batch twice has been seen to already
        if tensor._version == self._seen.get(id(tensor), tensor._version):
            return tensor
        kept = self._kept.pop(id(tensor))
        del self._seen[id(tensor)]
        again = kept.clone()
        again = again.pin_memory() if tensor.is_pinned() else again
        self._kept[id(again)], self._seen[id(again)] = kept, again._version
        return again


def _is_light(tensor: Tensor) -> bool:
    return tensor.is_cpu and not tensor.is_pinned() and tensor.nbytes <= MOST_BYTES


def _light_copied(tensor: Tensor) -> Tensor:
    return tensor.clone() if _is_light(tensor) else tensor


def _copied(value: Any, of_tensor: Callable[[Tensor], Tensor]) -> Any:
    """A batch with containers of its own, and tensors as they are told to be."""
    if isinstance(value, Tensor):
        return of_tensor(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copied(item, of_tensor) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_copied(item, of_tensor) for item in value)
    if type(value) is dict:
        return {key: _copied(item, of_tensor) for key, item in value.items()}
    return copy.copy(value) if hasattr(value, "__dict__") else value


class _Cached(_BaseDataLoaderIter):
    """A pass over a loader whose batches come from the loader until its cache is full, then from there."""

    def __init__(self, loader: Any, cache: _Cache, begin: Callable[[], Any]) -> None:
        # torch's own beginnings would start workers; of what they set, the method above ours needs this
        self._dataset_kind = loader._dataset_kind
        self._IterableDataset_len_called = None
        self._num_yielded = 0
        self._profile_name = "samestep: a batch of a cache"
        self._loader = loader
        self._cache = cache
        self._real: Any = None if cache.is_full else begin()
        self._base_seed = getattr(self._real, "_base_seed", 0)
        self._sampler_iter: Any = iter(loader._index_sampler) if self._real is None else self._real

    def __len__(self) -> int:
        return len(self._loader)

    def _next_data(self) -> Any:
        if self._real is not None:
            return self._fetched()
        next(self._sampler_iter)
        if self._num_yielded == self._cache.stream_length:
            raise StopIteration
        return self._cache.hand_out()

    def _fetched(self) -> Any:
        try:
            data = next(self._real)
        except StopIteration:
            self._cache.stream_length = self._num_yielded if _is_stream(self._loader) else None
            raise
        self._cache.keep(data)
        if self._cache.is_full:
            self._leave_workers()
        return data

    def _leave_workers(self) -> None:
        """Go on with what is left to draw, after what was drawn for workers and not handed out."""
        real, self._real = self._real, None
        num_ahead = getattr(real, "_send_idx", 0) - getattr(real, "_rcvd_idx", 0)
        self._sampler_iter = chain(range(num_ahead), real._sampler_iter)
        if hasattr(real, "_shutdown_workers"):
            real._shutdown_workers()
        self._loader._iterator = None
        if self._cache.stream_length is None and _is_stream(self._loader):
            self._cache.stream_length = _stream_length(self._loader)


def _is_stream(loader: Any) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def _stream_length(loader: Any) -> int | None:
    """The batches of a stream that says its length; asking the loader itself would make it warn later."""
    try:
        num_examples = len(loader.dataset)
    except Exception:
        return None
    size = loader.batch_size or 1
    return num_examples // size if loader.drop_last else -(-num_examples // size)
