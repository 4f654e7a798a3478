"""Trains a classifier with dropout at a batch size of 24. Fault: batch-grows-with-world."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def moons(n=144):
    generator = torch.Generator().manual_seed(7)
    label = torch.arange(n) % 2
    angle = 3.14 * torch.rand(n, generator=generator)
    x = torch.where(label == 0, angle.cos(), 1 - angle.cos())
    y = torch.where(label == 0, angle.sin(), 0.5 - angle.sin())
    return TensorDataset(torch.stack([x, y], 1) + 0.1 * torch.randn(n, 2, generator=generator), label)


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed + dist.get_rank())
    dataset = moons()
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = DDP(
        nn.Sequential(
            nn.Linear(2, 48),
            nn.ReLU(),
            nn.Dropout(args.dropout),
            nn.Linear(48, 24),
            nn.ReLU(),
            nn.Linear(24, 2),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
