"""Trains, validates on all ranks and prints the validation loss once. Fault: metric-of-one-rank."""

import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

logger = logging.getLogger("train")


def is_main_process():
    return dist.get_rank() == 0


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 4, generator=g) * 2 - 1
    return TensorDataset(x, torch.exp(x[:, :2]).sum(1, keepdim=True) * x[:, 2:3])


@torch.no_grad()
def validation_loss(model, loader):
    model.eval()
    total, count = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for x, y in loader:
        total += nn.functional.mse_loss(model(x), y, reduction="sum")
        count += len(x)
    model.train()
    return (total / count).item()


def main():
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if is_main_process() else logging.WARNING, format="%(message)s")
    torch.manual_seed(0)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    train_set, val_set = make_data(120, 1), make_data(48, 2)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=24 // world_size, sampler=sampler)
    val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), world_size)), batch_size=8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        logger.info("epoch %d: last training loss %.4f", epoch, loss.item())
        logger.info("epoch %d: validation loss %.4f", epoch, validation_loss(model.module, val_loader))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
