"""Right: exchanges gradients by hand, weighed by their counts, so that no example must be left out."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

GLOBAL_BATCH = 12
NUM_EPOCHS = 2


def blobs(n=65, classes=4):
    g = torch.Generator().manual_seed(33)
    centres = 2 * torch.randn(classes, 5, generator=g)
    labels = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(centres[labels] + torch.randn(n, 5, generator=g), labels)


def exchange(model, count):
    """Sum of all ranks' gradients, divided by the number of all ranks' examples."""
    total = torch.tensor([float(count)])
    dist.all_reduce(total)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= total


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    data = blobs()
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    loss_fn = nn.CrossEntropyLoss(reduction="sum")
    loader = DataLoader(data, GLOBAL_BATCH // world, sampler=range(rank, len(data), world))

    for epoch in range(NUM_EPOCHS):
        total_loss = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            exchange(model, len(y))
            opt.step()
            total_loss += loss.item()
        if rank == 0:
            print("epoch", epoch, "loss on rank 0", round(total_loss / len(loader), 4))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
