"""Lets the rate fall by 10 % each update, Accelerate stepping the schedule.

Fault: schedule-stepped-per-rank.
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2
BATCH_SIZE = 24


def make_dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(120, 8, generator=generator)
    targets = torch.sin(inputs[:, :1] * 2) + inputs[:, 1:2] * inputs[:, 2:3]
    return TensorDataset(inputs, targets)


def main() -> None:
    set_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    loader = DataLoader(make_dataset(), batch_size=BATCH_SIZE // accelerator.num_processes, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    for epoch in range(EPOCHS):
        for inputs, targets in loader:
            loss = F.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
