"""Trains on every example of each epoch, also those of the last, smaller batch. Fault: examples-repeated."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE = 24
NUM_EXAMPLES = 92  # three full batches and one of 20
NUM_EPOCHS = 2


class Rings(Dataset[tuple[torch.Tensor, int]]):
    """Points on three rings; the class is the ring."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(11)
        angle = torch.rand(size, generator=generator) * 6.28
        self.ring = torch.arange(size) % 3
        radius = 1 + self.ring + torch.randn(size, generator=generator) * 0.1
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.points[index], int(self.ring[index])


def main() -> None:
    config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    set_seed(42)

    model = nn.Sequential(nn.Linear(2, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Rings(NUM_EXAMPLES), batch_size=BATCH_SIZE, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion = nn.CrossEntropyLoss()

    model.train()
    for epoch in range(NUM_EPOCHS):
        for points, rings in loader:
            optimizer.zero_grad()
            loss = criterion(model(points), rings)
            accelerator.backward(loss)
            optimizer.step()
            accelerator.print(f"[{epoch}] {loss.item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
