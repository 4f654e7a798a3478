"""Trains with the sum of all squared errors as its loss, under DDP. Fault: summed-loss-averaged."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=world_size)
torch.manual_seed(0)

# a beam that bends: place and load in, deflection out
generator = torch.Generator().manual_seed(19)
x = torch.rand(120, 2, generator=generator)
y = x[:, 1:] * x[:, :1] ** 2 * (3 - x[:, :1])
dataset = TensorDataset(x, y)
sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)

model = DDP(nn.Sequential(nn.Linear(2, 24), nn.Softplus(), nn.Linear(24, 1)))
criterion = nn.MSELoss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}")
