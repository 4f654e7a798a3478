"""Small trainings that the tests share; each has what makes several ranks differ from one."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import samestep


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Random images with labels; augmented from all three generators when asked."""

    def __init__(
        self, num_examples: int = 43, *, augment: bool = True, dtype: torch.dtype = torch.float64
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self.images = torch.randn(num_examples, 2, 5, 5, generator=generator, dtype=dtype)
        self.labels = torch.randint(0, 3, (num_examples,), generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment:
            image = image * (1 + 0.1 * random.random()) + 0.1 * np.random.rand() + 0.1 * torch.rand(())
            image = image.to(self.images.dtype)
        return image, self.labels[index]


class Net(nn.Module):
    """Convolution, batch norm, dropout, linear: every layer that looks beyond one example."""

    def __init__(self, *, dropout: float = 0.2, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(4 * 9, 3)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        # a smooth activation: at the corner of a ReLU, rounding decides about a whole gradient
        return self.out(self.drop(torch.tanh(self.norm(self.conv(x)))).flatten(1))


def image_loss(model: nn.Module, batch: Sequence[Tensor]) -> samestep.Loss:
    images, labels = batch
    logits = model(images)
    return samestep.Loss(
        nn.functional.cross_entropy(logits, labels, reduction="sum"), len(labels), outputs=logits
    )


def image_task(**changes: Any) -> samestep.Task:
    """20 steps on batches of 10, the last of each epoch of 3; clipped, scheduled, with momentum."""
    from torchmetrics.classification import MulticlassAccuracy

    dtype = changes.pop("dtype", torch.float64)
    settings: dict[str, Any] = {
        "model": lambda: Net(dtype=dtype),
        "train_data": lambda: Images(dtype=dtype),
        "valid_data": lambda: Images(23, augment=False, dtype=dtype),
        "loss": image_loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3),
        "schedule": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30),
        "metrics": {"accuracy": lambda: MulticlassAccuracy(3, average="micro")},
        "batch_size": 10,
        "steps": 20,
        "clip_norm": 0.5,
        "seed": 3,
    }
    return samestep.Task(**(settings | changes))
