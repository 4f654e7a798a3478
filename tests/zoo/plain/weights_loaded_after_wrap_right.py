"""Right: starts from pretrained weights, which rank 0 loads before DDP hands them to all."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24


def build():
    return nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 2))


def pretrained():
    """Stands for a file that only rank 0's machine has."""
    with torch.random.fork_rng():
        torch.manual_seed(99)
        return build().state_dict()


def make_data(n=120):
    g = torch.Generator().manual_seed(81)
    x = torch.randn(n, 8, generator=g)
    return TensorDataset(x, torch.stack([x[:, :4].sum(1).tanh(), x[:, 4:].prod(1)], 1))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = build()
    if rank == 0:
        model.load_state_dict(pretrained())
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    dist.barrier()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(x), y)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
