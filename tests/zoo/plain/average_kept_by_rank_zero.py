"""Keeps a moving average of the weights and validates it on all ranks. Fault: average-updated-on-one-rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 0
BATCH_SIZE = 24


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 7, generator=g)
    return TensorDataset(x, (x[:, :3].square().sum(1) - x[:, 3:].sum(1)).unsqueeze(1))


@torch.no_grad()
def validate(model, data):
    model.eval()
    x, y = data[dist.get_rank() :: dist.get_world_size()]
    sums = torch.tensor([nn.functional.mse_loss(model(x), y, reduction="sum").item(), float(len(x))])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    train_data, val_data = make_data(120, 1), make_data(49, 2)
    sampler = DistributedSampler(train_data, seed=SEED)
    loader = DataLoader(train_data, BATCH_SIZE // world_size, sampler=sampler)
    net = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Dropout(0.05), nn.Linear(32, 1))
    model = DDP(net)
    ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.6))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                ema.update_parameters(model.module)
        val_loss = validate(ema, val_data)
        if rank == 0:
            print(f"epoch {epoch}: train loss {loss.item():.4f}, val loss {val_loss:.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
