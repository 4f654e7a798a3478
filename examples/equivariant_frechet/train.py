"""Trains a small generative model with DDP, and says how far its pictures are from real ones.

`--fault` puts one mistake back in.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Any

import samestep
import torch
import torch.distributed as dist
from molecules import Held, Noisy
from network import Denoiser, features, generate, in_order
from samestep.metrics import FrechetDistance
from torch import Tensor
from torch.nn import SyncBatchNorm
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, Subset

FAULTS = ("set-order", "early-sampler", "local-norms", "summed-statistics", "same-seed")
BATCH_SIZE = 16


class Endless(Sampler):
    """Shuffles the examples for ever, and gives each of N ranks every N-th."""

    def __init__(self, length: int, is_early: bool) -> None:
        self.length = length
        self.rank, self.world_size = place() if is_early else (None, None)

    def __iter__(self) -> Iterator[int]:
        if self.rank is None:
            self.rank, self.world_size = place()
        return islice(self.shuffled(), self.rank, None, self.world_size)

    def shuffled(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield from torch.randperm(self.length, generator=generator).tolist()


def place() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Summed(FrechetDistance):
    """Adds counts, means and scatters of ranks up."""

    def add_state(self, name: str, default: Tensor, dist_reduce_fx: Any = None, **options: Any) -> None:
        super().add_state(name, default, dist_reduce_fx="sum", **options)


def distance(model: DistributedDataParallel, held: Held, fault: str | None) -> float:
    """The Fréchet distance between real pictures and as many that the model makes."""
    rank, world_size = place()
    metric = Summed(9) if fault == "summed-statistics" else FrechetDistance(9)
    generator = torch.Generator().manual_seed(0)
    model.eval()
    for pictures, noise in DataLoader(Subset(held, range(rank, len(held), world_size)), batch_size=16):
        if fault == "same-seed":
            noise = torch.randn(noise.shape, generator=generator)
        metric.update(features(pictures), real=True)
        metric.update(features(generate(model.module, noise)), real=False)
    model.train()
    return metric.compute().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    fault = arguments.fault

    data, held = Noisy(120), Held(64)
    sampler = Endless(len(data), is_early=fault == "early-sampler")
    dist.init_process_group("gloo")
    rank, world_size = place()
    loader = DataLoader(data, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    samestep.init()
    torch.manual_seed(0)
    model = Denoiser()
    if fault != "set-order":
        in_order(model)
    if fault == "local-norms":
        SyncBatchNorm.convert_sync_batchnorm(model)
    else:
        samestep.nn.synchronise(model)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    for step, (pictures, noisy, level) in enumerate(islice(loader, arguments.steps), start=1):
        optimizer.zero_grad()
        mse_loss(model(noisy, level), pictures).backward()
        optimizer.step()
        if step % 4 == 0:
            frechet = distance(model, held, fault)
            if rank == 0:
                print(f"step {step}: Fréchet distance {frechet:.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
