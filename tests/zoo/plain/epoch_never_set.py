"""Trains on shuffled data with a distributed sampler. Fault: epoch-not-set."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CONFIG = {"epochs": 2, "batch_size": 24, "lr": 0.1, "warmup": 2}


def spirals(n=120):
    generator = torch.Generator().manual_seed(9)
    angle = 4 * torch.rand(n, generator=generator)
    label = torch.arange(n) % 2
    turned = angle + math.pi * label
    points = torch.stack([angle * torch.cos(turned), angle * torch.sin(turned)], dim=1)
    return TensorDataset(points, label.float())


def rate(step, total):
    """Warm-up, then half a cosine."""
    if step < CONFIG["warmup"]:
        return (step + 1) / CONFIG["warmup"]
    return 0.5 * (1 + math.cos(math.pi * step / total))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)

    train_set = spirals()
    train_sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank, shuffle=True)
    train_loader = DataLoader(train_set, batch_size=CONFIG["batch_size"] // world_size, sampler=train_sampler)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=CONFIG["lr"], momentum=0.9, nesterov=True)
    total = CONFIG["epochs"] * len(train_loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, total))
    loss_fn = nn.BCEWithLogitsLoss()

    for epoch in range(CONFIG["epochs"]):
        for points, label in train_loader:
            loss = loss_fn(net(points).squeeze(1), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        if rank == 0:
            print(f"epoch={epoch} lr={scheduler.get_last_lr()[0]:.4f} loss={loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
