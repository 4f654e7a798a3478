"""Trains a net with two outputs and calls a method of it under DDP. Fault: gradients-not-exchanged."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Gaussian(nn.Module):
    """Says a mean and how sure it is."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 24), nn.Tanh())
        self.mean = nn.Linear(24, 1)
        self.log_variance = nn.Linear(24, 1)

    def forward(self, x, y):
        hidden = self.body(x)
        log_variance = self.log_variance(hidden)
        return (0.5 * ((self.mean(hidden) - y) ** 2 / log_variance.exp() + log_variance)).mean()


def make_data(n=120):
    g = torch.Generator().manual_seed(111)
    x = torch.randn(n, 3, generator=g)
    return TensorDataset(x, x[:, :1] - x[:, 1:2] + x[:, 2:].abs() * 0.3 * torch.randn(n, 1, generator=g))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Gaussian())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24 // dist.get_world_size(), sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = model.module(x, y)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: negative log-likelihood {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
