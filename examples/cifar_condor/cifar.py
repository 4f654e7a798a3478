"""CIFAR-10 from the files of its binary version, and a net for it.

A file has records of 3073 bytes. One is the class, and 3072 are the image: all red values, all green, and
all blue ones, row by row.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RECORD_BYTES = 1 + 3 * 32 * 32


def cifar10(folder, *, train):
    """The training or the test images, scaled to a deviation of about 1, and their classes."""
    paths = sorted(Path(folder).glob("data_batch_*.bin" if train else "test_batch.bin"))
    if not paths:
        raise SystemExit(
            f"{folder} has no files of CIFAR-10's: unpack its binary version there, or run draw.py"
        )
    for path in paths:
        if path.stat().st_size % RECORD_BYTES:
            raise SystemExit(
                f"{path} has {path.stat().st_size} bytes, which are no whole records of {RECORD_BYTES}"
            )
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, RECORD_BYTES) for path in paths])
    images = torch.from_numpy(records[:, 1:].astype(np.float32)).reshape(-1, 3, 32, 32)
    return TensorDataset((images - 127.5) / 64, torch.from_numpy(records[:, 0].astype(np.int64)))


class Net(nn.Sequential):
    """Two convolutions and two linear layers."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


@torch.no_grad()
def accuracy(model, data, device):
    model.eval()
    right = sum(
        (model(images.to(device)).argmax(1) == classes.to(device)).sum().item()
        for images, classes in DataLoader(data, batch_size=500)
    )
    model.train()
    return right / len(data)
