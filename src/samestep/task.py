"""Task: what a user declares about a training, and nothing about how many ranks will do it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from samestep.errors import ConfigError

Batch = Any
Precision = Literal["fp32", "bf16", "fp16"]


class Loss(NamedTuple):
    """What a loss function returns for a batch: the sum of its losses and the sum of their weights.

    The step's loss is `sum of sums / sum of weights` over the whole global batch, plus `penalty`. The
    weight is the number of examples, tokens, points or pixels that `sum` adds up; a penalty is a term
    that does not belong to examples (weight decay written as a loss, for one) and counts once a step.
    `outputs` is what metrics are updated with. A plain `(sum, weight)` tuple does as well.
    """

    sum: Tensor
    weight: Tensor | float
    penalty: Tensor | None = None
    outputs: Any = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training, declared: model, data, loss, optimizer and what surrounds them.

    Things that hold random values or open files are declared as functions, so that every rank makes its
    own from the same seed: `model()`, `optimizer(parameters)`, `schedule(optimizer)`, `metrics` as
    functions without arguments. Data sets may be given as they are or as functions that make them.
    """

    model: Callable[[], nn.Module]
    train_data: Dataset[Any] | Callable[[], Dataset[Any]]
    loss: Callable[[nn.Module, Batch], Loss | tuple[Any, ...]]
    optimizer: Callable[[Any], Optimizer]
    batch_size: int = 32
    """Examples in one step, over all ranks."""
    epochs: int | None = None
    steps: int | None = None
    """Stop after this many steps; with `epochs`, whichever comes first. One of the two is needed."""
    steps_per_epoch: int | None = None
    """End an epoch after this many steps; needed for a sampler or data set without end."""

    valid_data: Dataset[Any] | Callable[[], Dataset[Any]] | None = None
    test_data: Dataset[Any] | Callable[[], Dataset[Any]] | None = None
    eval_batch_size: int | None = None
    shuffle: bool = True
    sampler: Any = None
    """A sampler, or a function of the data set that makes one; drawn once and shared out to all ranks."""
    batch_sampler: Any = None
    """The same for global batches; takes the place of `batch_size`, `shuffle` and `sampler`."""
    collate: Callable[[list[Any]], Batch] | None = None
    workers: int = 0
    """Loader processes a rank."""

    schedule: Callable[[Optimizer], Any] | None = None
    schedule_every: Literal["step", "epoch"] = "step"
    monitor: str = "valid/loss"
    """The value that plateau schedules, early stopping and the best checkpoint look at."""
    monitor_mode: Literal["min", "max"] = "min"

    metrics: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    score: Callable[[Any, Batch], tuple[Any, ...]] | None = None
    """(outputs, batch) → the arguments of every metric's `update`; without it, (outputs, batch[1])."""
    predict: Callable[[nn.Module, Batch], Any] | None = None
    """(model, batch) → outputs, one row an example; without it, the outputs that the loss returns."""
    hooks: Sequence[Any] = ()

    accumulate: int = 1
    """Turns a step: the global batch is worked on in so many pieces, one after the other, to save memory."""
    clip_norm: float | None = None
    update: Literal["whole", "sharded", "auto"] = "auto"
    """Whether every rank updates all parameters, or its slice of them; "auto": where it can and pays."""
    precision: Precision = "fp32"
    ema_decay: float | None = None
    compile: bool = False
    channels_last: bool = False
    seed: int = 0

    checkpoint_every: int | None = None
    """Steps between checkpoints; without it, one at the end of each epoch."""
    keep_last: int = 2

    def __post_init__(self) -> None:
        for name in ("model", "loss", "optimizer"):
            if not callable(getattr(self, name)):
                raise ConfigError(f"Task.{name} is {getattr(self, name)!r}; it must be a function.")
        if isinstance(self.model, nn.Module):
            raise ConfigError(
                "Task.model is a module that exists already; give a function that makes it, such as "
                "model=Net or model=lambda: Net(width=32), so that every rank makes it from the same seed."
            )
        if self.epochs is None and self.steps is None:
            raise ConfigError(
                "The task says neither `epochs` nor `steps`; one of them must say when to stop."
            )
        _at_least(
            1, self, "batch_size", "epochs", "steps", "steps_per_epoch", "eval_batch_size", "accumulate"
        )
        _at_least(1, self, "checkpoint_every", "keep_last")
        _at_least(0, self, "workers", "seed")
        _one_of(self, "schedule_every", ("step", "epoch"))
        _one_of(self, "monitor_mode", ("min", "max"))
        _one_of(self, "update", ("whole", "sharded", "auto"))
        _one_of(self, "precision", ("fp32", "bf16", "fp16"))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm is {self.clip_norm!r}; it must be above 0.")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ConfigError(f"ema_decay is {self.ema_decay!r}; it must be between 0 and 1.")
        if self.sampler is not None and self.batch_sampler is not None:
            raise ConfigError(
                "The task gives both `sampler` and `batch_sampler`; a batch sampler includes the sampler."
            )
        if self.accumulate > self.batch_size and self.batch_sampler is None:
            raise ConfigError(
                f"accumulate is {self.accumulate} but batch_size is {self.batch_size}: "
                "a turn would have no example; make accumulate smaller."
            )

    @classmethod
    def setting_names(cls) -> list[str]:
        """The names of all settings, for error messages and for `--set`."""
        return [f.name for f in fields(cls)]


def _at_least(least: int, task: Task, *names: str) -> None:
    for name in names:
        value = getattr(task, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number, {least} or more.")


def _one_of(task: Task, name: str, choices: Iterable[str]) -> None:
    value = getattr(task, name)
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(choices)}.")
