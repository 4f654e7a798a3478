"""Steering angles on the ranks of torchrun: torchrun train.py [--batch rank|all] [--epochs 10] [--keras]"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from road import Net, frames
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch", choices=("rank", "all"), default="rank", help="whose 32 frames a batch has")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--keras", action="store_true", help="the net of keras_net.py")
arguments = parser.parse_args()

is_on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if is_on_gpu else "gloo")
device = f"cuda:{os.environ['LOCAL_RANK']}" if is_on_gpu else "cpu"
torch.manual_seed(0)
train, valid = frames(480, seed=1), frames(160, seed=2)
if arguments.keras:
    import keras_net

    keras_net.keras.utils.set_random_seed(0)
    net = keras_net.keras_net().to(device)
else:
    net = Net().to(device)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
sampler = DistributedSampler(train)
batch_size = 32 if arguments.batch == "rank" else 32 // dist.get_world_size()
loader = DataLoader(train, batch_size=batch_size, sampler=sampler)

began, updates = time.perf_counter(), 0
for epoch in range(arguments.epochs):
    sampler.set_epoch(epoch)
    for pictures, angles in loader:
        optimizer.zero_grad()
        mse_loss(model(pictures.to(device)), angles.to(device)).backward()
        optimizer.step()
        updates += 1
seconds = time.perf_counter() - began

if dist.get_rank() == 0:
    net.eval()
    with torch.no_grad():
        pictures, angles = (column.to(device) for column in valid.tensors)
        loss = mse_loss(net(pictures), angles)
    print(f"{updates} updates in {seconds:.1f} s, loss {loss:.3f}")
dist.destroy_process_group()
