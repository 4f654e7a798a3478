"""Right: trains a small convolutional net with DDP, each rank on its own part of the images."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 2
BATCH_SIZE = 24


def make_images(n=96, size=8):
    """Stripes that lie down (class 0) or stand (class 1), or squares of a board (class 2)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (n,), generator=generator)
    i, j = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    patterns = torch.stack([i % 2, j % 2, (i + j) % 2]).float()
    noise = torch.randn(n, size, size, generator=generator)
    return TensorDataset((patterns[labels] + 0.8 * noise).unsqueeze(1), labels)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc = nn.Linear(8 * 2 * 2, 3)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def train(rank, world_size):
    torch.manual_seed(0)
    dataset = make_images()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    model = DDP(ConvNet())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        running_loss = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"[GPU{rank}] Epoch {epoch} | Steps: {len(loader)} | Loss: {running_loss / len(loader):.4f}")

    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.module.state_dict(), Path(folder) / "checkpoint.pt")
            print("Training checkpoint saved")
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    dist.destroy_process_group()
