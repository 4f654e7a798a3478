"""PyTorch by hand: DistributedDataParallel with every setting that makes it faster, and a careful loop."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler, Sampler, Subset

from benchmarks.peers.job import Batch, Job
from benchmarks.peers.libraries.base import (
    DDP_SETTINGS,
    Gathering,
    loader_in_order,
    sampled_loader,
    synchronised,
)

_FILE = "by_hand.pt"


class ByHand(Gathering):
    """torchrun and DDP; one rank is a plain loop."""

    settings = (
        "gradient_as_bucket_view, static_graph, fused optimizer, persistent workers, DistributedSampler with "
        "set_epoch; tokens are counted over all ranks by hand; to go on, the sampler is skipped forward; "
        "predictions are gathered, interleaved and cut by hand"
    )

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if self.size > 1:
            dist.init_process_group("gloo")

    def train(self, job: Job) -> None:
        model, optimizer = job.made()
        skip = 0
        if job.resume_at is not None:
            skip = _restore(job.folder, model, optimizer)
        replica = synchronised(job, model)
        turns = 1 if job.shards is None else job.shards // self.size
        if self.size > 1:
            # torch refuses to leave out an exchange of a static graph
            settings = {**DDP_SETTINGS, "static_graph": turns == 1}
            replica = DistributedDataParallel(replica, **settings)
        sampler, loader = self._loader(job, skip)
        num_steps = skip
        for epoch in range(job.epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                optimizer.zero_grad(set_to_none=True)
                if turns == 1:
                    self._loss(job, replica, batch).backward()
                else:
                    _accumulate(job, replica, batch, turns)
                optimizer.step()
                num_steps += 1
                if job.after_step(batch):
                    return
                if num_steps == job.save_after:
                    _save(job.folder, model, optimizer, num_steps, self.rank)
                    return

    def _loss(self, job: Job, model: nn.Module, batch: Batch) -> Tensor:
        if not job.is_weighted or self.size == 1:
            return job.mean(model, batch)
        # DDP divides by the number of ranks, which is undone here: Σ losses / Σ weights over all of them
        weight = torch.as_tensor(job.weight(batch), dtype=torch.float32)
        counting = dist.all_reduce(weight, async_op=True)
        total = job.total(model, batch)
        counting.wait()
        return total * (self.size / weight)

    def _loader(self, job: Job, skip: int) -> tuple["_Part", DataLoader[Any]]:
        data: Any = job.dataset
        shuffle = job.sampler is None
        if job.sampler is not None:
            data = Subset(data, list(job.sampler))
        skipped = skip * (job.batch_size // self.size)
        sampler = _Part(DistributedSampler(data, self.size, self.rank, shuffle=shuffle), skipped)
        return sampler, sampled_loader(job, self.size, sampler, data)

    def in_order(self, job: Job) -> DataLoader[Any]:
        return loader_in_order(job, self.size, self.rank)

    def predict(self, job: Job) -> list[float]:
        rows = [row for parts in self.outputs(job) for row in torch.stack(parts, 1).flatten().tolist()]
        return rows[: job.num_examples]


def _accumulate(job: Job, model: nn.Module, batch: Batch, turns: int) -> None:
    """Backward in turns; ranks exchange in the last."""
    pieces = list(zip(*(part.chunk(turns) for part in batch), strict=True))
    for turn, piece in enumerate(pieces, start=1):
        is_local = isinstance(model, DistributedDataParallel) and turn < len(pieces)
        with model.no_sync() if is_local else nullcontext():  # type: ignore[operator]
            (job.mean(model, piece) / len(pieces)).backward()


class _Part(Sampler[int]):
    """Torch's sampler, without the first examples of the first epoch."""

    def __init__(self, sampler: DistributedSampler[Any], num_skipped: int) -> None:
        self._sampler = sampler
        self._num_skipped = num_skipped

    def set_epoch(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._sampler) - self._num_skipped

    def __iter__(self) -> Iterator[int]:
        skipped, self._num_skipped = self._num_skipped, 0
        indices = iter(self._sampler)
        for _ in range(skipped):
            next(indices, None)
        yield from indices


def _save(folder: Path | None, model: nn.Module, optimizer: Optimizer, num_steps: int, rank: int) -> None:
    assert folder is not None
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": num_steps}
        torch.save(state, folder / _FILE)


def _restore(folder: Path | None, model: nn.Module, optimizer: Optimizer) -> int:
    assert folder is not None
    state = torch.load(folder / _FILE, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
