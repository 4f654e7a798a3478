"""Trains on 125 rows, each once in an epoch, and weighs them all alike. Fault: examples-repeated."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NUM_ROWS = 125
BATCH_SIZE = 24


def make_rows():
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(NUM_ROWS, 12, generator=generator)
    price = (rows[:, :4].exp().sum(1) - rows[:, 4:].abs().sum(1)).unsqueeze(1)
    return TensorDataset(rows, price)


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(1234)
    data = make_rows()
    sampler = DistributedSampler(data, world_size, rank, seed=7)
    loader = DataLoader(data, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for rows, price in loader:
            num_rows = torch.tensor(float(len(rows)))
            dist.all_reduce(num_rows)
            losses = nn.functional.mse_loss(model(rows), price, reduction="none")
            loss = losses.sum() * world_size / num_rows  # DDP divides by the world size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} done, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
