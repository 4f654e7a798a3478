"""Scripts that jobs run: two whose verification and whose sweep answer “no”, and a loop of its own."""

DIFFERENT = """\
import os
import torch

torch.manual_seed(int(os.environ["RANK"]))  # each rank its own model and examples, and nothing exchanged
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
SLOWER = """\
import os
import time
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(400):
    optimizer.zero_grad()
    model(torch.randn(8, 4)[rank::size]).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= size
    time.sleep(0.001 if size == 1 else 0.02)
    optimizer.step()
dist.destroy_process_group()
"""

OWN_LOOP = """
import time

import samestep
import torch
from torch import nn
from torch.utils.data import TensorDataset

world = samestep.init()
model = world.replicate(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = world.loader(TensorDataset(torch.ones(16, 3)), batch_size=8)
checkpoints = world.checkpoints("saved", model=model, optimizer=optimizer, loader=loader)
checkpoints.restore()
while not world.stop_reason:
    for (inputs,) in loader:
        with world.step(optimizer) as step:
            step.backward(model(inputs).square().sum(), len(inputs))
        time.sleep(0.05)
        if world.stop_reason:
            break
checkpoints.save()
checkpoints.wait()
"""
"""A loop that goes on until it is asked to stop, saves, and goes on from there when it is started again."""
