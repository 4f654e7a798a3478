"""Accumulates two small batches an update and keeps gradients short all the way. Fault: clipped-per-rank."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GLOBAL_BATCH = 24
ACCUMULATE = 2
LARGEST_NORM = 0.2


def shorten(parameters, largest):
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.sqrt(sum((g**2).sum() for g in gradients))
    if norm > largest:
        for g in gradients:
            g *= largest / norm


def make_data(n=120):
    g = torch.Generator().manual_seed(31)
    x = torch.randn(n, 10, generator=g)
    return TensorDataset(x, (x[:, :5] * x[:, 5:]).sum(1).tanh())


def train_epoch(model, loader, optimizer):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        is_last = (i + 1) % ACCUMULATE == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = nn.functional.l1_loss(model(x).squeeze(1), y) / ACCUMULATE
            loss.backward()
        shorten(model.parameters(), LARGEST_NORM)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_data()
    sampler = DistributedSampler(data)
    micro_batch = GLOBAL_BATCH // ACCUMULATE // dist.get_world_size()
    loader = DataLoader(data, batch_size=micro_batch, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer)
    if dist.get_rank() == 0:
        print("done")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
