"""Library: what every peer must be able to do with a job, in its own best documented way."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from benchmarks.peers.job import Batch, Job

DDP_SETTINGS: dict[str, Any] = {"gradient_as_bucket_view": True, "static_graph": True}
"""What makes DDP faster; every library that has DDP below gets it."""


class Library(ABC):
    """A library on one rank; made once in a process, after its launcher has started it."""

    settings: str
    """The settings that it runs with, for the table."""

    rank: int
    size: int

    @abstractmethod
    def train(self, job: Job) -> None:
        """Train until the job says that it ends."""

    @abstractmethod
    def predict(self, job: Job) -> list[float]:
        """One output for each example, in the order in which the library gives them; what rank 0 has."""

    @abstractmethod
    def average(self, job: Job) -> float:
        """The mean of the outputs, as the library has a metric."""

    def close(self) -> None:
        """Leave the world."""
        if dist.is_initialized():
            dist.destroy_process_group()


class Gathering(Library):
    """A library that loads examples in order; what follows in `predict` and `average` is torch's."""

    @abstractmethod
    def in_order(self, job: Job) -> Any:
        """Loads this rank's examples in the order of the data set."""

    def predict(self, job: Job) -> list[float]:
        return [row for parts in self.outputs(job) for row in torch.cat(parts).tolist()]

    def average(self, job: Job) -> float:
        from torchmetrics import MeanMetric

        metric = MeanMetric()  # merges sums and counts of all ranks
        for values in self.own_outputs(job):
            metric.update(values)
        return float(metric.compute())

    def own_outputs(self, job: Job) -> Iterator[Tensor]:
        model, _ = job.made()
        return evaluated(job, model, self.in_order(job))

    def outputs(self, job: Job) -> Iterator[list[Tensor]]:
        """Batch by batch, the rows of each rank; all ranks have equally many."""
        for rows in self.own_outputs(job):
            parts = [torch.empty_like(rows) for _ in range(self.size)]
            if dist.is_initialized():
                dist.all_gather(parts, rows)
            else:
                parts = [rows]
            yield parts


def plain_loader(job: Job, size: int, *, train: bool = True) -> DataLoader[Any]:
    """The loader of a script for one process, to be handed to a library; a rank has its part of a batch."""
    own_sampler = job.sampler if train else None
    return _loader(job, job.dataset, size, sampler=own_sampler, shuffle=train and own_sampler is None)


def sampled_loader(
    job: Job, size: int, sampler: Sampler[int], data: Dataset[Any] | None = None
) -> DataLoader[Any]:
    """The loader of a script that gives each rank a sampler of its own."""
    return _loader(job, job.dataset if data is None else data, size, sampler=sampler)


def loader_in_order(job: Job, size: int, rank: int) -> DataLoader[Any]:
    """That of a script which evaluates with torch's sampler for several ranks."""
    return sampled_loader(job, size, DistributedSampler(job.dataset, size, rank, shuffle=False))


def _loader(job: Job, data: Dataset[Any], size: int, **order: Any) -> DataLoader[Any]:
    return DataLoader(
        data,
        batch_size=job.batch_size // size,
        collate_fn=job.collate,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        **order,
    )


def synchronised(job: Job, model: nn.Module) -> nn.Module:
    """The model with torch's synchronised batch norm, where the job asks for it."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if job.sync_batch_norm else model


def without_first(batches: Any, number: int) -> Iterator[Batch]:
    """What a loop by hand does to go on in the middle of an epoch."""
    return islice(iter(batches), number, None)


def evaluated(job: Job, model: nn.Module, batches: Any) -> Iterator[Tensor]:
    """The outputs of the model, batch by batch."""
    assert job.output is not None
    model.eval()
    with torch.no_grad():
        for batch in batches:
            yield job.output(model, batch)
