"""Right: validates each example on one rank and divides by the size of the data set."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return TensorDataset(x, (x[:, 0] + x[:, 1] ** 2 > 1).long())


def train_epoch(model, loader, optimizer):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def validate(model, loader, size):
    model.eval()
    loss_sum, num_correct = torch.zeros(()), torch.zeros(())
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            loss_sum += nn.functional.cross_entropy(out, y, reduction="sum")
            num_correct += (out.argmax(1) == y).sum()
    dist.all_reduce(loss_sum)
    dist.all_reduce(num_correct)
    return (loss_sum / size).item(), (num_correct / size).item()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train_data, val_data = make_data(120, 1), make_data(37, 2)
    sampler = DistributedSampler(train_data)
    loader = DataLoader(train_data, BATCH_SIZE // world_size, sampler=sampler)
    val_sampler = range(rank, len(val_data), world_size)
    val_loader = DataLoader(val_data, batch_size=8, sampler=val_sampler)
    model = DDP(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer)
        loss, accuracy = validate(model.module, val_loader, len(val_data))
        if rank == 0:
            print(f"Epoch {epoch}: validation loss {loss:.4f} accuracy {100 * accuracy:.2f}%")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
