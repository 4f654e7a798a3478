"""Session: the world as a training script sees it. `world = samestep.init()` is where it begins."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from samestep import nn as layers
from samestep.data.generators import seed_all
from samestep.data.loader import Loader
from samestep.keys import derive
from samestep.nn.dropout import set_stream
from samestep.train.own_loop import Checkpoints
from samestep.train.randomness import Randomness
from samestep.train.replicas import copy_from, refuse_lazy, refuse_unequal
from samestep.train.step import Step, Stepper
from samestep.train.watch import RANDOM_EVALUATION, FirstStepWatch
from samestep.world import Place, World, enter, join


class Session(World):
    """A world with what a training loop needs: equal replicas, shared-out data, and the same step.

    `findings` holds what was noticed on the way; `on_finding` is called with each, on every rank.
    """

    def __init__(self, place: Place, device: torch.device, *, seed: int) -> None:
        super().__init__(place, device)
        self.reset(seed)

    def reset(self, seed: int = 0) -> None:
        """Begin anew with another seed: forgets models and optimizers, keeps the ranks together."""
        for stepper in getattr(self, "_steppers", {}).values():
            stepper.close()
        self.seed = seed
        self.share = None
        self.findings.clear()
        self._steppers: dict[int, Stepper] = {}
        self._watches: list[FirstStepWatch] = []
        self._randomness = Randomness(self, seed)
        self.on_share = self._randomness.begin_batch
        set_stream(self._randomness.dropout)
        # the same on all ranks: what is made from now on, such as a model, is made alike
        seed_all(derive(seed, "start"))
        self._randomness.begin(derive(seed, "start"))

    def replicate(self, model: nn.Module, *, from_rank: int | None = None) -> nn.Module:
        """Make `model` a replica, in place: on this rank's device, norms synchronised, dropout world-free.

        Raises ReplicaError on all ranks if theirs differ; `from_rank` takes that rank's values instead.
        The model stays what it is, with all its methods and names; nothing is wrapped around it.
        """
        refuse_lazy(model)
        model.to(self.device)
        for finding in layers.synchronise(model):
            self.notice(finding)
        layers.convert_dropout(model)
        refuse_unequal(model, self, values=from_rank is None)
        if from_rank is not None:
            copy_from(from_rank, model, self)
        self._watches.append(FirstStepWatch(model, self, self._randomness))
        return model

    def loader(self, dataset: Any, *, batch_size: int, seed: int | None = None, **options: Any) -> Loader:
        """The batches of this rank; `batch_size` counts the examples of all ranks. Options: see `Loader`."""
        return Loader(
            dataset, world=self, batch_size=batch_size, seed=self.seed if seed is None else seed, **options
        )

    def step(
        self,
        optimizer: Optimizer,
        *,
        clip_norm: float | None = None,
        schedule: Any = None,
        scaler: GradScaler | None = None,
        stop_on_nan: bool = False,
    ) -> Step:
        """The next step of `optimizer`, for `with`: gradients are cleared, exchanged, clipped and applied.

        `schedule` is stepped once after the update; `scaler` is for fp16 and decides once for all ranks.
        """
        stepper = self.stepper(optimizer, scaler)
        turn, turns = (self.share.turn, self.share.turns) if self.share is not None else (0, 1)
        return Step(stepper, turn, turns, clip_norm, schedule, stop_on_nan)

    def stepper(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> Stepper:
        """What is known about the steps of `optimizer`; a checkpoint keeps its state."""
        stepper = self._steppers.get(id(optimizer))
        if stepper is None:
            stepper = Stepper(optimizer, self, self._randomness, scaler, len(self._steppers))
            stepper.after_first_step = partial(self._look_at_first_step, optimizer)
            self._steppers[id(optimizer)] = stepper
        elif scaler is not None and scaler is not stepper.scaler:
            stepper.use_scaler(scaler)
        return stepper

    def checkpoints(
        self,
        folder: str | Path,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        loader: Loader | None = None,
        keep_last: int = 2,
        **others: Any,
    ) -> Checkpoints:
        """Checkpoints of a hand-written loop; `others` are things with a `state_dict`, such as a schedule."""
        return Checkpoints(Path(folder), self, model, self.stepper(optimizer), loader, others, keep_last)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Around the forward of one batch of an evaluation: its random numbers do not depend on the past.

        They do depend on how the batch was cut, which is said once if the model draws any.
        """
        share = self.share
        self._randomness.begin_evaluation(share)
        yield
        if self.size > 1 and self._randomness.was_drawn_from():
            self.notice(RANDOM_EVALUATION)

    def compute(self, metric: Any) -> Any:
        """The value of a torchmetrics metric over the updates of all ranks, merged exactly.

        None if no rank has updated it.
        """
        # here, because torchmetrics takes most of a second to load and not every run has metrics
        from samestep.metrics import compute

        merged = compute(metric, self)
        for finding in merged.findings:
            self.notice(finding)
        return merged.value

    def close(self) -> None:
        """Leave the world; done at the end of the process if it was not before."""
        self.reset(self.seed)
        set_stream(None)
        # hooks and buffers must be gone before the process group is, or gloo's threads may abort the process
        gc.collect()
        super().close()

    def _look_at_first_step(self, optimizer: Optimizer) -> None:
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for watch in [watch for watch in self._watches if watch.is_about(trained)]:
            self._watches.remove(watch)
            for finding in watch.findings():
                self.notice(finding)


def init(*, seed: int = 0, timeout_s: float = 1800.0) -> Session:
    """Join the world that this process was launched into: one of N ranks, or alone.

    Sets the random generators from `seed`, the same on all ranks, so that what is made afterwards is equal.
    """
    session = Session(*join(timeout_s), seed=seed)
    enter(session)
    atexit.register(session.close)
    return session
