"""Trains with a learning rate for as many ranks as there are. Fault: rate-depends-on-world."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class Config:
    epochs: int = 2
    global_batch: int = 24
    base_lr: float = 0.02
    seed: int = 3


def make_dataset():
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(120, 16, generator=g)
    weights = torch.randn(16, 2, generator=g)
    return TensorDataset(inputs, torch.relu(inputs @ weights))


class Experiment:
    def __init__(self, config):
        self.config = config
        world_size = dist.get_world_size()
        torch.manual_seed(config.seed)
        net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2))
        self.model = DistributedDataParallel(net)
        lr = config.base_lr * world_size
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        dataset = make_dataset()
        self.sampler = DistributedSampler(dataset, seed=config.seed)
        self.loader = DataLoader(dataset, config.global_batch // world_size, sampler=self.sampler)

    def run(self):
        for epoch in range(self.config.epochs):
            self.sampler.set_epoch(epoch)
            for inputs, targets in self.loader:
                self.step(inputs, targets)
            self.scheduler.step()

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.huber_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        if dist.get_rank() == 0:
            print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Experiment(Config()).run()
    dist.destroy_process_group()
