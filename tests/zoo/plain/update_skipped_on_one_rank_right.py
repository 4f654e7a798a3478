"""Right: trains on data with wild values and skips an update when the loss of all ranks is wild."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24
LARGEST_LOSS = 6.0


def make_data(n=144):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 8, generator=generator)
    y = torch.sin(2 * x[:, :4]).sum(1, keepdim=True)
    y[::29] += 8.0  # a loose contact
    return TensorDataset(x, y)


def train_one_epoch(model, loader, optimizer):
    num_skipped = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        mean_loss = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean_loss)
        if mean_loss.item() > LARGEST_LOSS:
            num_skipped += 1
            continue
        optimizer.step()
    return num_skipped


def main():
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        num_skipped = train_one_epoch(model, loader, optimizer)
        if rank == 0:
            print(f"epoch {epoch}: {num_skipped} updates skipped")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
