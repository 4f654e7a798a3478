"""The training that faults are put into: all that could make a run differ from another, in a few seconds.

Batch norm, dropout, augmentation, an uneven last batch, clipping, a schedule, averaged weights and AdamW. The
run's own environment may ask for a fault that only code inside of a rank can make.
"""

import os
import random
import resource
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import Dataset

from samestep import Task, supervised
from samestep.hooks import Hook
from samestep.train.training import Training

FIRST_STEPS = "SAMESTEP_FIRST_STEPS"
"""Names a file for the times, on the monotonic clock, at which the first rank had done its first step."""
FAULT = "SAMESTEP_FAULT"
"""Names the fault that a rank makes of itself: DATA raises in the data set, FULL has no room for a save."""
DATA, FULL = "data", "full"
STEPS = 60
EXAMPLES = 75
PACE_S = 0.02
_WIDTH = 96


class Examples(Dataset[tuple[Tensor, Tensor]]):
    """Random examples, augmented; on the last rank with a fault, where one is asked for."""

    def __init__(self, number: int, *, augment: bool) -> None:
        generator = torch.Generator().manual_seed(number)
        self._inputs = torch.randn(number, _WIDTH, generator=generator)
        self._classes = torch.randint(5, (number,), generator=generator)
        self._augment = augment
        self._num_read = 0

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._num_read += 1
        if self._num_read > 200 and _is_faulty(DATA):
            raise OSError("the disk with the examples is gone")
        example = self._inputs[index]
        if self._augment:
            example = example * (1 + 0.1 * random.random()) + 0.1 * torch.rand(())
        return example, self._classes[index]


class Pace(Hook):
    """Takes time without work, so that faults find a run under way and several runs find a core."""

    def __init__(self) -> None:
        self._has_stepped = False

    def after_step(self, training: Training) -> None:
        if not self._has_stepped and training.world.is_first and FIRST_STEPS in os.environ:
            with Path(os.environ[FIRST_STEPS]).open("a") as file:
                file.write(f"{time.monotonic()}\n")
        self._has_stepped = True
        time.sleep(PACE_S)
        if training.step == STEPS // 2 and _is_faulty(FULL):
            # what the system says of a full disk, but for this process alone
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))


def _is_faulty(fault: str) -> bool:
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    return os.environ.get(FAULT) == fault and (is_last or fault == FULL)


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(_WIDTH, 256), nn.BatchNorm1d(256), nn.Tanh(), nn.Dropout(0.2),
        nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Tanh(), nn.Linear(256, 5),
    )  # fmt: skip


def _optimizer(parameters: object) -> Optimizer:
    return AdamW(parameters, lr=3e-3)  # type: ignore[arg-type]


def _schedule(optimizer: Optimizer) -> LRScheduler:
    return CosineAnnealingLR(optimizer, STEPS)


task = Task(
    model=_model,
    train_data=lambda: Examples(EXAMPLES, augment=True),
    valid_data=lambda: Examples(200, augment=False),
    loss=supervised(nn.CrossEntropyLoss()),
    optimizer=_optimizer,
    schedule=_schedule,
    batch_size=16,
    eval_batch_size=16,
    steps=STEPS,
    clip_norm=1.0,
    ema_decay=0.9,
    hooks=(Pace(),),
    checkpoint_every=7,
)
