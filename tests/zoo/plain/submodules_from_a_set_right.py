"""Right: forecasts the wind from five sensors, with one small tower each, always made in the same order."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

COLUMNS = {"time": 0, "north": 1, "east": 2, "south": 3, "west": 4, "roof": 5}
SENSORS = sorted(set(COLUMNS) - {"time"})
BATCH_SIZE = 24


class Station(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict()
        for name in SENSORS:
            self.towers[name] = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, readings):
        return sum(tower(readings[:, COLUMNS[name]]) for name, tower in self.towers.items())


def make_readings(n=120):
    generator = torch.Generator().manual_seed(11)
    readings = torch.randn(n, len(COLUMNS), 4, generator=generator)
    strength = torch.arange(1.0, 7.0)[:, None] * torch.tensor([1.0, -0.5, 0.25, 0.1])
    wind = torch.tanh((readings * strength).sum(2)).sum(1, keepdim=True)
    return TensorDataset(readings, wind)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_readings()
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=BATCH_SIZE // dist.get_world_size(), sampler=sampler)
    model = DDP(Station())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for readings, wind in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(readings), wind)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: training loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
