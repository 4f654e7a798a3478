"""Right: tunes the head of a net and leaves its backbone as it is, on all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh())
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def make_data(n=120):
    g = torch.Generator().manual_seed(61)
    x = torch.randn(n, 9, generator=g)
    return TensorDataset(x, x.view(n, 3, 3).sum(2).argmax(1))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Net(), find_unused_parameters=True)
    if rank == 0:
        print("freezing the backbone")
    for p in model.module.backbone.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, labels in loader:
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
