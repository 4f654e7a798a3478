"""Batch size: loaders whose batches have a given number of examples, whatever the program asked for."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from samestep.experiment import Experiment
from samestep.probe.origins import Origins
from samestep.probe.replacing import Replacements


class BatchSize:
    """Changes loaders that the experiment is meant for, once they are made; its number is that of one rank.

    Loaders of Samestep's own are left alone, whose batches are those of all ranks, and so are those that are
    given whole batches by a data set.
    """

    def __init__(self, origins: Origins, experiment: Experiment) -> None:
        assert experiment.batch_size is not None, "there is a size if there is this change"
        self._origins = origins
        self._experiment = experiment
        self._size = max(1, experiment.batch_size)
        self._replaced = Replacements()

    def install(self) -> None:
        # outside of what learns the line of a loader as it is made
        self._replaced.wrap(DataLoader, "__init__", self._around)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if self._experiment.is_meant(self._origins.of(loader)):
                self._change(loader)

        return init

    def _change(self, loader: Any) -> None:
        own = loader.batch_sampler
        # torch lets nobody set these of a loader that is made
        if loader.batch_size is not None:
            object.__setattr__(loader, "batch_size", self._size)
            own.batch_size = self._size
        elif own is not None and not hasattr(own, "cut"):
            object.__setattr__(loader, "batch_sampler", Regrouped(own, self._size))
        elif isinstance(loader.sampler, BatchSampler):
            object.__setattr__(loader, "sampler", Regrouped(loader.sampler, self._size))


class Regrouped:
    """The examples of a batch sampler in their order, in batches of `batch_size`; all else is the sampler's.

    It drops the last batch, if that is smaller, where the sampler says that it does.
    """

    def __init__(self, own: Any, batch_size: int) -> None:
        self._own = own
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[Any]]:
        waiting: list[Any] = []
        for batch in self._own:
            waiting.extend(batch)
            while len(waiting) >= self.batch_size:
                yield waiting[: self.batch_size]
                waiting = waiting[self.batch_size :]
        if waiting and not getattr(self._own, "drop_last", False):
            yield waiting

    def __len__(self) -> int:
        num_examples = self._num_examples()
        is_cut = getattr(self._own, "drop_last", False)
        return num_examples // self.batch_size if is_cut else -(-num_examples // self.batch_size)

    def _num_examples(self) -> int:
        size = getattr(self._own, "batch_size", None)
        if isinstance(self._own, BatchSampler) and type(self._own).__len__ is BatchSampler.__len__:
            return len(self._own.sampler)  # type: ignore[arg-type]  # one without says so itself
        if not isinstance(size, int):
            raise TypeError(f"object of type {type(self._own).__name__!r} has batches of no known size")
        return len(self._own) * size

    def __getattr__(self, name: str) -> Any:
        if name == "_own":  # of one that is being made from a pickle
            raise AttributeError(name)
        return getattr(self._own, name)
