"""Job: one training, said once for all libraries. Knows nothing of any of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

Batch = Any


def never(batch: Batch) -> bool:
    """A training that nobody watches goes on to its last epoch."""
    return False


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained, and when it ends; `batch_size` counts the examples of all ranks together.

    `total` is the sum of the losses of a batch and `weight` what it is to be divided by; `mean` is the same
    of one batch alone, as loops without weights have it. `after_step` is called after every step on every
    rank with the batch that was trained on (None if it had none), and ends the training by saying True.
    """

    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[Iterable[Tensor]], Optimizer]
    dataset: Dataset[Any]
    batch_size: int
    total: Callable[[nn.Module, Batch], Tensor]
    mean: Callable[[nn.Module, Batch], Tensor]
    weight: Callable[[Batch], int | Tensor]
    output: Callable[[nn.Module, Batch], Tensor] | None = None
    is_weighted: bool = False
    """Whether the weight of a batch is not its number of examples."""
    sampler: Any = None
    collate: Callable[[list[Any]], Batch] | None = None
    workers: int = 0
    epochs: int = 1_000_000
    sync_batch_norm: bool = False
    shards: int | None = None
    """Shards of Samestep's bitwise mode; by hand, the same pieces are accumulated."""
    after_step: Callable[[Batch], bool] = never
    folder: Path | None = None
    """Where the checkpoint is, of a job that saves or goes on."""
    save_after: int | None = None
    """Steps after which it is saved; the training ends there."""
    resume_at: int | None = None
    """The step of the first epoch from which it goes on, out of `folder`."""

    @property
    def num_examples(self) -> int:
        """How many an epoch has."""
        return len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]

    def made(self) -> tuple[nn.Module, Optimizer]:
        """A model and its optimizer, the same on all ranks."""
        torch.manual_seed(0)
        model = self.make_model()
        return model, self.make_optimizer(model.parameters())
