"""Right: trains in mixed precision on all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24


def can_do_bf16(rank):
    return True


def make_data(n=120):
    g = torch.Generator().manual_seed(101)
    x = torch.randn(n, 16, generator=g)
    return TensorDataset(x, (x[:, :8].sum(1) * x[:, 8:].sum(1) > 0).long())


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=can_do_bf16(rank)):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
