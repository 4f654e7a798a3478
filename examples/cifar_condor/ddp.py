"""The same with DistributedDataParallel, and each example on one rank: torchrun ddp.py FOLDER [EPOCHS]"""

import os
import sys
import time

import torch
import torch.distributed as dist
from cifar import Net, accuracy, cifar10
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

folder, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
is_on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if is_on_gpu else "gloo")
device = f"cuda:{os.environ['LOCAL_RANK']}" if is_on_gpu else "cpu"
torch.manual_seed(dist.get_rank())
train, test = (cifar10(folder, train=part) for part in (True, False))
model = DistributedDataParallel(Net().to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=32 // dist.get_world_size(), sampler=sampler)

for epoch in range(epochs):
    began = time.perf_counter()
    sampler.set_epoch(epoch)
    for images, classes in loader:
        optimizer.zero_grad()
        cross_entropy(model(images.to(device)), classes.to(device)).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        score = accuracy(model.module, test, device)
        print(f"epoch {epoch}: {time.perf_counter() - began:.1f} s, accuracy {score:.3f}")
dist.destroy_process_group()
