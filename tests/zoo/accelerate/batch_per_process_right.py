"""Right: trains a small convolutional net with batches of 24 that are split between the processes."""

import argparse

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_images(size: int) -> TensorDataset:
    """Stripes, upright or lying, under noise."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 2, (size,), generator=generator)
    stripes = torch.sin(torch.arange(8) * 1.5).expand(8, 8)
    images = torch.stack([stripes if label else stripes.T for label in labels.tolist()])[:, None]
    return TensorDataset(images + torch.randn(images.shape, generator=generator), labels)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        )
        self.head = nn.Linear(128, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    set_seed(0)
    loader = DataLoader(make_images(144), batch_size=args.batch_size, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch + 1}/{args.epochs} loss={loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
