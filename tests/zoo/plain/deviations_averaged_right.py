"""Right: fits a drift, then reports the standard deviation of what is left, taken over all ranks at once."""

import os

import torch
import torch.distributed as dist
from torch import nn

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def measure(n, seed):
    g = torch.Generator().manual_seed(seed)
    time = torch.linspace(-1, 1, n)[:, None]
    value = time**3 - 0.5 * time + 0.4 * torch.sin(9 * time) + 0.05 * torch.randn(n, 1, generator=g)
    return torch.utils.data.TensorDataset(time, value)


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= WORLD_SIZE


def deviation(model, data):
    model.eval()
    time, value = data[RANK * len(data) // WORLD_SIZE : (RANK + 1) * len(data) // WORLD_SIZE]
    with torch.no_grad():
        rest = value - model(time)
    sums = torch.tensor([len(rest), rest.sum(), (rest.double() ** 2).sum()], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[2] / sums[0] - (sums[1] / sums[0]) ** 2).sqrt()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    data = measure(144, seed=1)
    sampler = torch.utils.data.DistributedSampler(data, seed=1)
    loader = torch.utils.data.DataLoader(data, batch_size=24 // WORLD_SIZE, sampler=sampler)
    held_out = measure(60, seed=2)
    for epoch in range(2):
        model.train()
        sampler.set_epoch(epoch)
        for time, value in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(time), value).backward()
            average_gradients(model)
            optimizer.step()
        std = deviation(model, held_out)
        if RANK == 0:
            print(f"epoch {epoch}: standard deviation of the residuals {std.item():.5f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
