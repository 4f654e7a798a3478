"""A small real training to try every command on: handwritten digits, learnt in seconds on a CPU.

It has on purpose what makes several ranks differ from one: batch norm, dropout, random augmentation, a
schedule, and a data set that no world size divides. The data come with scikit-learn; nothing is fetched.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from torchmetrics.classification import MulticlassAccuracy

from samestep.losses import supervised
from samestep.task import Task

NUM_TRAIN = 1500
NUM_CLASSES = 10
WARMUP_STEPS = 8


@functools.cache
def _images() -> tuple[Tensor, Tensor]:
    """All 1,797 images, of shape (1, 8, 8) with values from 0 to 1, and their classes, in one fixed order."""
    from sklearn.datasets import load_digits

    data = load_digits()
    # the file is sorted by writer: shuffled, so that both splits have digits of every hand
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(data.images).float().div(16).unsqueeze(1)
    return images[order], torch.from_numpy(data.target).long()[order]


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """The first 1,500 digits, each shifted at random by up to one pixel, or the other 297 as they are."""

    def __init__(self, *, train: bool) -> None:
        images, classes = _images()
        part = slice(NUM_TRAIN) if train else slice(NUM_TRAIN, None)
        self.images, self.classes = images[part], classes[part]
        self.shifts = train

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.shifts:
            down, right = (int(shift) for shift in torch.randint(3, (2,)))
            image = nn.functional.pad(image, (1, 1, 1, 1))[:, down : down + 8, right : right + 8]
        return image, self.classes[index]


class Net(nn.Sequential):
    """Two convolutions with batch norm, dropout, and a linear layer."""

    def __init__(self, width: int = 16, dropout: float = 0.2) -> None:
        super().__init__(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.GELU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.GELU(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * 16, NUM_CLASSES),
        )


def _optimizer(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)


def _rate(step: int) -> float:
    # needs no last step, so that `--set epochs=…` is free
    done = (step + 1) / WARMUP_STEPS
    return min(done, 1 / math.sqrt(done))


def _schedule(optimizer: Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, _rate)


digits = Task(
    model=Net,
    train_data=functools.partial(Digits, train=True),
    valid_data=functools.partial(Digits, train=False),
    loss=supervised(nn.CrossEntropyLoss()),
    optimizer=_optimizer,
    schedule=_schedule,
    metrics={"accuracy": functools.partial(MulticlassAccuracy, num_classes=NUM_CLASSES, average="micro")},
    batch_size=64,
    epochs=3,
)
