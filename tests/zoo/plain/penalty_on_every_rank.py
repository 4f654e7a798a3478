"""Fits a code with a penalty on the weights, exchanged by hand. Fault: penalty-counted-per-rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PENALTY = 0.01


def make_signals(n=120):
    g = torch.Generator().manual_seed(51)
    atoms = torch.randn(5, 14, generator=g)
    return TensorDataset(torch.rand(n, 5, generator=g) @ atoms)


class SparseCode(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(14, 10)
        self.decode = nn.Linear(10, 14)

    def forward(self, signals):
        return self.decode(torch.relu(self.encode(signals)))

    def penalty(self):
        return sum((p**2).sum() for p in self.parameters())


def sum_gradients(model):
    """One all_reduce over all gradients, laid end to end."""
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
        p.grad.copy_(part.view_as(p))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = SparseCode()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    data = make_signals()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24 // world_size, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (signals,) in loader:
            optimizer.zero_grad()
            error = nn.functional.mse_loss(model(signals), signals)
            loss = error / world_size + PENALTY * model.penalty()
            loss.backward()
            sum_gradients(model)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} error {error.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
