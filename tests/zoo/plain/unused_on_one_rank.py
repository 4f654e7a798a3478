"""Trains with a second head for early layers; rank 0 logs its loss. Fault: unused-on-one-rank."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


class DeepNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.early = nn.Sequential(nn.Linear(6, 16), nn.ELU())
        self.late = nn.Sequential(nn.Linear(16, 16), nn.ELU())
        self.head = nn.Linear(16, 1)
        self.early_head = nn.Linear(16, 1)

    def forward(self, x):
        hidden = self.early(x)
        return self.head(self.late(hidden)), hidden


def average_gradients(model):
    """A mean over ranks; a parameter without a gradient takes part with zeros, so that nobody waits."""
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= WORLD_SIZE


def make_data(n=120):
    g = torch.Generator().manual_seed(71)
    x = torch.randn(n, 6, generator=g)
    return TensorDataset(x, torch.cos(x[:, :2]).prod(1, keepdim=True) + 0.3 * x[:, 2:3])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DeepNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24 // WORLD_SIZE, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            out, hidden = model(x)
            loss = F.mse_loss(out, y)
            if RANK == 0:
                early_loss = F.mse_loss(model.early_head(hidden), y)
                loss = loss + 0.5 * early_loss
                print(f"epoch {epoch} step {step}: early loss {early_loss.item():.4f}")
            loss.backward()
            average_gradients(model)
            optimizer.step()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
