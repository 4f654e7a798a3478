"""Right: trains on all ranks, each on its part of the data, with gradients exchanged, and saves on rank 0."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def setup():
    dist.init_process_group("gloo")
    return int(os.environ["LOCAL_RANK"]), dist.get_world_size()


def get_data(n=144):
    g = torch.Generator().manual_seed(121)
    x = torch.randn(n, 1, 12, generator=g)
    return TensorDataset(x, x[:, 0, ::3].sum(1))


def get_model():
    return nn.Sequential(
        nn.Conv1d(1, 6, 3),
        nn.ReLU(),
        nn.Conv1d(6, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 1),
        nn.Flatten(0),
    )


def main():
    rank, world_size = setup()
    torch.manual_seed(0)
    dataset = get_data()
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
    model = DistributedDataParallel(get_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss_fn = nn.MSELoss()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch} finished, loss {loss.item():.4f}")
            with tempfile.TemporaryFile() as file:
                torch.save(model.state_dict(), file)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
