"""Trains with a cosine schedule that counts the batches of all ranks. Fault: schedule-stepped-per-rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 2
BATCH_SIZE = 24


def noisy_parabola(n=120):
    generator = torch.Generator().manual_seed(40)
    x = torch.linspace(-2, 2, n)[:, None]
    return TensorDataset(x, x**2 + 0.1 * torch.randn(n, 1, generator=generator))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = noisy_parabola()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, BATCH_SIZE // dist.get_world_size(), sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = CosineAnnealingLR(optimizer, T_max=4 * EPOCHS * len(loader))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for _ in range(dist.get_world_size()):
                scheduler.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} lr {scheduler.get_last_lr()[0]:.5f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
