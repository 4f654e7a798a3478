"""Trains an autoencoder, then measures mean and spread of its codes. Fault: metric-merged-wrongly."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

BATCH_SIZE = 24


class Moments:
    """Count, mean and centred sum of squares of all codes seen."""

    def __init__(self, size):
        self.count = torch.zeros(1)
        self.mean = torch.zeros(size)
        self.squares = torch.zeros(size)

    def update(self, count, mean, squares):
        delta, total = mean - self.mean, self.count + count
        self.squares += squares + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total

    def reduce(self):
        for state in (self.count, self.mean, self.squares):
            dist.all_reduce(state)
        self.mean /= dist.get_world_size()


def make_curves(n):
    """Curves sorted by frequency, as the instrument wrote them."""
    frequencies = torch.linspace(0.2, 2.0, n)[:, None]
    return TensorDataset(torch.sin(frequencies * torch.arange(12)))


def evaluate(encoder, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    part = Subset(data, range(rank * len(data) // world_size, (rank + 1) * len(data) // world_size))
    moments = Moments(size=3)
    with torch.no_grad():
        for (curves,) in DataLoader(part, batch_size=8):
            codes = encoder(curves)
            mean = codes.mean(0)
            moments.update(len(codes), mean, ((codes - mean) ** 2).sum(0))
    moments.reduce()
    return moments.mean.norm().item(), (moments.squares / moments.count).sum().item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_curves(120)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE // dist.get_world_size(), sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, 12)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (curves,) in loader:
            loss = nn.functional.mse_loss(model(curves), curves)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean, spread = evaluate(model.module[:2], make_curves(60))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: codes have mean {mean:.4f}, spread {spread:.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
