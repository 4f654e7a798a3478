"""Right: trains a convolutional net with group norm, which does not look across the batch."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 24
EPOCHS = 2


def make_blobs(size: int) -> TensorDataset:
    """Images of a bright spot; the label is the quarter of the image that it is in."""
    generator = torch.Generator().manual_seed(9)
    labels = torch.randint(0, 4, (size,), generator=generator)
    images = torch.randn(size, 1, 8, 8, generator=generator) * 0.3
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 4 * (label // 2) + 1, 4 * (label % 2) + 1
        image[0, row : row + 2, column : column + 2] += 2
    return TensorDataset(images, labels)


def block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.GroupNorm(4, channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


def main() -> None:
    set_seed(0)
    config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model = nn.Sequential(block(1, 8), block(8, 16), nn.Flatten(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(make_blobs(120), batch_size=BATCH_SIZE, shuffle=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    for epoch in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
        accelerator.print(f"epoch {epoch}: {loss.item():.4f} (rate {scheduler.get_last_lr()[0]:.4f})")
    accelerator.end_training()


if __name__ == "__main__":
    main()
