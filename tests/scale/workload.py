"""A training script that `samestep scale` measures, with one trouble at a time; by default it has none.

Its global batch is the same on any number of ranks. It computes much, and exchanges little.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--examples", type=int, default=2048)
    parser.add_argument("--size", type=int, default=40, help="pixels of an image's side")
    parser.add_argument("--slow-example-s", type=float, default=0.0)
    parser.add_argument("--extra-parameters", type=int, default=0)
    parser.add_argument("--fixed-s", type=float, default=0.0, help="what each step costs, whatever its batch")
    parser.add_argument("--late-rank-s", type=float, default=0.0, help="what rank 1 loses in each step")
    parser.add_argument("--evaluation-s", type=float, default=0.0)
    parser.add_argument("--checkpoint-s", type=float, default=0.0)
    parser.add_argument("--no-shares", action="store_true", help="each rank has the whole data set")
    parser.add_argument("--data-parallel", action="store_true")
    parser.add_argument("--grown", action="store_true", help="the batch is that of a rank, and grows with N")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path())
    return parser.parse_args()


class Slow(TensorDataset):
    """Examples that take a while, without using a processor for it."""

    def __init__(self, seconds, *tensors):
        super().__init__(*tensors)
        self._seconds = seconds

    def __getitem__(self, index):
        if self._seconds:
            time.sleep(self._seconds)
        return super().__getitem__(index)


class Heavy(nn.Module):
    """Many parameters that compute next to nothing: only a few rows of them are used in a step."""

    def __init__(self, count):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))

    def forward(self, x):
        return x + self.weight.mean()


def make_model(args):
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Linear(16, 10)]
    if args.extra_parameters:
        layers.append(Heavy(args.extra_parameters))
    return nn.Sequential(*layers)


def saved(model, seconds, path):
    """Save over and over, until so much time has passed."""
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        torch.save(model.state_dict(), path)


@torch.no_grad()
def evaluated(model, images, seconds):
    model.eval()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        model(images)
    model.train()


def main():
    args = arguments()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = make_model(args)
    if args.data_parallel:
        model = nn.DataParallel(model)
    elif size > 1:
        model = DistributedDataParallel(model)
    images = torch.randn(args.examples, 3, args.size, args.size)
    data = Slow(args.slow_example_s, images, torch.randint(10, (args.examples,)))
    sampler = None if args.no_shares or size == 1 else DistributedSampler(data, size, rank)
    batch = args.batch if args.grown else args.batch // size
    loader = DataLoader(data, batch_size=batch, sampler=sampler, shuffle=sampler is None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            time.sleep(args.fixed_s + (args.late_rank_s if rank == 1 else 0.0))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if args.evaluation_s:
            evaluated(model, images[:64], args.evaluation_s)
        if args.checkpoint_s:
            saved(model, args.checkpoint_s, args.folder / f"checkpoint-{rank}.pt")


if __name__ == "__main__":
    main()
