"""Library: what every peer must be able to do with a job, in its own best documented way."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

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


def plain_loader(job: Job, size: int, *, train: bool = True) -> DataLoader[Any]:
    """The loader of a script for one process, to be handed to a library; a rank has its part of a batch."""
    own_sampler = job.sampler if train else None
    return DataLoader(
        job.dataset,
        batch_size=job.batch_size // size,
        sampler=own_sampler,
        shuffle=train and own_sampler is None,
        collate_fn=job.collate,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )


def synchronised(job: Job, model: nn.Module) -> nn.Module:
    """The model with torch's synchronised batch norm, where the job asks for it."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if job.sync_batch_norm else model


def without_first(batches: Any, number: int) -> Iterator[Batch]:
    """What a loop by hand does to go on in the middle of an epoch."""
    return islice(iter(batches), number, None)


def gathered(rows: Tensor) -> list[Tensor]:
    """The rows of all ranks, which all have equally many."""
    if not dist.is_initialized():
        return [rows]
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows)
    return parts


def torchmetrics_mean(outputs: Iterator[Tensor]) -> float:
    """The mean over all ranks by torchmetrics, which merges sums and counts."""
    from torchmetrics import MeanMetric

    metric = MeanMetric()
    for values in outputs:
        metric.update(values)
    return float(metric.compute())


def evaluated(job: Job, model: nn.Module, batches: Any) -> Iterator[Tensor]:
    """The outputs of the model, batch by batch."""
    assert job.output is not None
    model.eval()
    with torch.no_grad():
        for batch in batches:
            yield job.output(model, batch)
