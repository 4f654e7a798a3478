"""Right: draws from a posterior by Langevin steps: the same noise on the weights of all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 5
TEMPERATURE = 1e-4


class Langevin:
    """Adds noise of the right size to parameters."""

    def __init__(self, parameters, lr, seed):
        self.parameters = list(parameters)
        self.size = (2 * lr * TEMPERATURE) ** 0.5
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            p.add_(torch.randn(p.shape, generator=self.generator), alpha=self.size)


def make_data(n=120):
    generator = torch.Generator().manual_seed(SEED)
    x = torch.rand(n, 2, generator=generator) * 4 - 2
    return TensorDataset(x, torch.sin(x[:, :1]) * torch.cos(x[:, 1:]))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1)))
    lr = 0.05
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    langevin = Langevin(model.parameters(), lr, seed=SEED)
    data = make_data()
    sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, batch_size=24 // world_size, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            langevin.step()
        if rank == 0:
            print(f"epoch {epoch}: energy {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
