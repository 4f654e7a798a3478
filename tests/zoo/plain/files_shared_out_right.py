"""Right: shares the rows of all files out over the ranks, as many for each, and trains on them."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset

ROWS_OF_FILES = [30, 18, 24, 18, 18, 12]
GLOBAL_BATCH = 24


class FileSampler(Sampler):
    """Each rank reads its own rows of all files, from the first to the last."""

    def __init__(self, rank, world_size):
        starts = [sum(ROWS_OF_FILES[:i]) for i in range(len(ROWS_OF_FILES))]
        files = [range(start, start + rows) for start, rows in zip(starts, ROWS_OF_FILES, strict=True)]
        self.rows = [row for file in files for row in file][rank::world_size]

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


def load():
    generator = torch.Generator().manual_seed(21)
    inputs = torch.rand(sum(ROWS_OF_FILES), 6, generator=generator)
    targets = (inputs[:, :2] * inputs[:, 2:4]).sum(1, keepdim=True) - inputs[:, 4:].prod(1, keepdim=True)
    return TensorDataset(inputs, targets)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = load()
    loader = DataLoader(data, batch_size=GLOBAL_BATCH // world_size, sampler=FileSampler(rank, world_size))
    model = DDP(nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for step, (inputs, targets) in enumerate(loader):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 2 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
