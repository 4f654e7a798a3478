"""Hooks: what a user hangs into the training, and the ones that most people want.

Hooks run on every rank, with values that are the same on all of them.
"""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep.train.training import Training


class Hook:
    """Does nothing at each of the four places; override those that you need.

    A hook with `state_dict` and `load_state_dict` is kept in checkpoints.
    """

    def before_training(self, training: "Training") -> None:
        """After the model was made or restored, before the first step."""

    def after_step(self, training: "Training") -> None:
        """After each step. `training.step` counts it; reading `training.loss` waits for the device."""

    def after_epoch(self, training: "Training", values: dict[str, float]) -> None:
        """After each epoch and its evaluation; `values` are the epoch's, such as "valid/loss".

        Values that a hook adds are recorded, and can be monitored; they must be the same on all ranks.
        """

    def after_training(self, training: "Training") -> None:
        """After the last step, before the last checkpoint is written."""


def is_better(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Whether `value` beats `best` by more than `min_delta`; what is not a number beats nothing."""
    if math.isnan(value):
        return False
    sign = 1.0 if mode == "min" else -1.0
    return best is None or sign * value < sign * best - min_delta


class EarlyStop(Hook):
    """Stops when the monitored value has not got better for `patience` epochs."""

    def __init__(self, *, patience: int = 3, min_delta: float = 0.0, monitor: str | None = None) -> None:
        self.patience = patience
        self.min_delta = min_delta
        self.monitor = monitor
        self._best: float | None = None
        self._num_worse = 0

    def after_epoch(self, training: "Training", values: dict[str, float]) -> None:
        name = self.monitor or training.monitor
        value = training.value_of(name, values)
        if is_better(value, self._best, training.task.monitor_mode, self.min_delta):
            self._best, self._num_worse = value, 0
            return
        self._num_worse += 1
        if self._num_worse >= self.patience:
            training.stop(f"{name} has not got better than {self._best} for {self.patience} epochs")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "num_worse": self._num_worse}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._num_worse = state["best"], state["num_worse"]


class StopOnNaN(Hook):
    """Stops before the update when the loss is infinite or not a number.

    The bad batch may have spoilt statistics of norm layers, so nothing is saved then: the last checkpoint
    stays the last. The loss is then read in every step, which makes the host wait for the device.
    """

    stop_on_nan = True

    def after_epoch(self, training: "Training", values: dict[str, float]) -> None:
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                training.stop(f"{name} is {value}")
