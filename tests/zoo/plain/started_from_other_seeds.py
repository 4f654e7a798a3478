"""Exchanges gradients by hand; each rank has a seed of its own. Fault: replicas-start-different."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def get_loader(batch_size):
    g = torch.Generator().manual_seed(91)
    x = torch.randn(120, 5, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, seed=4)
    return DataLoader(data, batch_size=batch_size, sampler=sampler), sampler


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed + dist.get_rank())
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader, sampler = get_loader(args.batch_size // dist.get_world_size())
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            average([p.grad for p in model.parameters()])
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=2)
    main(parser.parse_args())
    dist.destroy_process_group()
