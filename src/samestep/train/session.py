"""Session: the world as a training script sees it. `world = samestep.init()` is where it begins."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from samestep import nn as layers
from samestep import phase, usercode
from samestep.data.generators import seed_all
from samestep.data.loader import Loader
from samestep.errors import ConfigError
from samestep.keys import derive
from samestep.nn.dropout import set_stream
from samestep.train import stop
from samestep.train.conditions import make_deterministic, refuse_other_ranks, undo_deterministic
from samestep.train.machines import notice_mixed
from samestep.train.own_loop import Checkpoints
from samestep.train.randomness import Randomness
from samestep.train.replicas import copy_from, refuse_lazy, refuse_unequal
from samestep.train.shard_buffers import ShardBuffers
from samestep.train.step import Step, Stepper
from samestep.train.turn_order import TurnOrder
from samestep.train.uncompiled import keep_compiler_out
from samestep.train.update import Update
from samestep.train.watch import RANDOM_EVALUATION, FirstStepWatch
from samestep.world import DEFAULT_SHARDS, Place, Share, World, enter, join

_OF_DATALOADER = {
    "num_workers": "say workers, of each rank",
    "collate_fn": "say collate",
    "pin_memory": "memory is pinned where that helps",
    "persistent_workers": "workers stay from epoch to epoch",
    "drop_last": "a short last batch counts for what it has; steps_per_epoch ends an epoch earlier",
}
"""What torch's loader takes, and what to say here."""


class Session(World):
    """A world with what a training loop needs: equal replicas, shared-out data, and the same step.

    This process is number `rank` of `size`, and its models and batches are on `device`. `findings` holds what
    was noticed on the way; `on_finding` is called with each, on every rank.
    """

    def __init__(self, place: Place, device: torch.device, *, seed: int) -> None:
        super().__init__(place, device)
        keep_compiler_out()
        self.set_mode(place.shards, allow_drift=place.allow_drift)
        self.reset(seed)

    def set_mode(self, shards: int | None, *, allow_drift: bool = False) -> None:
        """Train in bitwise mode, with so many shards, or in fast mode (None); before anything is made."""
        if shards is not None and shards < self.size:
            raise ConfigError(
                f"shards is {shards} and the world has {self.size} ranks, so that a rank would have none to "
                f"work on: use at least {self.size} shards, or fewer ranks."
            )
        if shards is not None:
            make_deterministic(strict=not allow_drift)
        elif self.shards is not None:
            undo_deterministic()
        self.shards, self.allow_drift = shards, allow_drift
        if shards is not None:
            refuse_other_ranks(self)

    def reset(self, seed: int = 0) -> None:
        """Begin anew with another seed: forgets models and optimizers, keeps the ranks together."""
        for stepper in getattr(self, "_steppers", {}).values():
            stepper.close()
        self.seed = seed
        self.share = None
        self.findings.clear()
        self._has_compared_machines = False
        self._steppers: dict[int, Stepper] = {}
        self._watches: list[FirstStepWatch] = []
        self._randomness = Randomness(self, seed)
        self._buffers = ShardBuffers(self)
        self._order = TurnOrder()
        self.on_share = self._begin_share
        set_stream(self._randomness.dropout)
        # the same on all ranks: what is made from now on, such as a model, is made alike
        seed_all(derive(seed, "start"))
        self._randomness.begin(derive(seed, "start"))

    def begin_again(self) -> None:
        """In bitwise mode, make random streams and buffers what they were when the current shard came."""
        assert self.share is not None
        self._buffers.restore()
        self._begin_share(self.share)

    def replicate(self, model: nn.Module, *, from_rank: int | None = None) -> nn.Module:
        """Make `model` a replica, in place: on this rank's device, norms synchronised, dropout world-free.

        Raises ReplicaError on all ranks if theirs differ; `from_rank` takes that rank's values instead.
        The model stays what it is, with all its methods and names; nothing is wrapped around it.
        """
        refuse_lazy(model)
        if not self._has_compared_machines:
            self._has_compared_machines = True
            notice_mixed(self)
        model.to(self.device)
        found = layers.synchronise(model)
        if self.shards is None:
            for finding in found:
                self.notice(finding)
        else:  # norms see their own shard, whether they could do more or not
            self._buffers.follow(model)
        layers.convert_dropout(model)
        refuse_unequal(model, self, values=from_rank is None)
        if from_rank is not None:
            copy_from(from_rank, model, self)
        if self.shards is None:
            self._watches.append(FirstStepWatch(model, self, self._randomness))
        return model

    def loader(
        self, dataset: Any, *, batch_size: int | None = None, seed: int | None = None, **options: Any
    ) -> Loader:
        """The batches of this rank; `batch_size` counts the examples of all ranks. Options: see `Loader`."""
        for name in options:
            if name in _OF_DATALOADER:
                raise ConfigError(f"world.loader has no {name}: {_OF_DATALOADER[name]}.")
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
        update: Update | None = None,
    ) -> Step:
        """The next step of `optimizer`, for `with`: gradients are cleared, exchanged, clipped and applied.

        `schedule` is stepped once after the update; `scaler` is for fp16 and decides once for all ranks.
        With `update="sharded"` each rank updates its slice and keeps the optimizer's state for it alone;
        parameters then have no gradients after the block. "auto" does so where it can and pays, and "whole",
        where nothing was said before, never.
        """
        stepper = self.stepper(optimizer, scaler, update=update)
        turn, turns = (self.share.turn, self.share.turns) if self.share is not None else (0, 1)
        return Step(stepper, turn, turns, clip_norm, schedule, stop_on_nan)

    def stepper(
        self, optimizer: Optimizer, scaler: GradScaler | None = None, *, update: Update | None = None
    ) -> Stepper:
        """What is known about the steps of `optimizer`; a checkpoint keeps its state."""
        stepper = self._steppers.get(id(optimizer))
        if stepper is None:
            stepper = Stepper(
                optimizer, self, self._randomness, self._buffers, self._order, scaler, len(self._steppers)
            )
            stepper.after_first_step = partial(self._look_at_first_step, optimizer)
            self._steppers[id(optimizer)] = stepper
        elif scaler is not None and scaler is not stepper.scaler:
            stepper.use_scaler(scaler)
        if update is not None:
            stepper.use_update(update)
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
        outside = self._randomness.now() if self.shards is not None else None
        self._randomness.begin_evaluation(share)
        phase.enter("forward", detail="evaluation")
        yield
        phase.enter("other", detail="evaluation")
        if outside is not None:
            outside.restore()
        elif self.size > 1 and self._randomness.was_drawn_from():
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

    @property
    def has_examples(self) -> bool:
        """Whether this rank has examples in the batch at hand.

        A rank that has none is handed an earlier batch, to keep the others company in the step; what comes of
        it counts for nothing, and must not be counted by a loop of your own.
        """
        return self.share is None or self.share.count > 0

    @property
    def num_steps(self) -> int:
        """Updates made so far, those before a restored checkpoint included; of the busiest optimizer."""
        return max((stepper.num_steps for stepper in self._steppers.values()), default=0)

    @property
    def stop_reason(self) -> str | None:
        """Why all ranks should stop after the step that was just taken; None if nobody asked to.

        The same on all ranks, so that a hand-written loop can save and leave.
        """
        totals = [stepper.totals for stepper in self._steppers.values() if stepper.totals is not None]
        if not any(total.read()[2] for total in totals):
            return None
        # how this rank ends is told by the same wish, whoever heard it
        stop.request("another rank was asked to stop")
        return stop.requested()

    def close(self) -> None:
        """Leave the world; done at the end of the process if it was not before."""
        self.reset(self.seed)
        if self.shards is not None:
            undo_deterministic()
        set_stream(None)
        # hooks and buffers must be gone before the process group is, or gloo's threads may abort the process
        gc.collect()
        super().close()

    def _begin_share(self, share: Share) -> None:
        self._randomness.begin_batch(share)
        if self.shards is not None:
            self._buffers.begin(is_new_step=share.turn == 0)

    def _look_at_first_step(self, optimizer: Optimizer) -> None:
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for watch in [watch for watch in self._watches if watch.is_about(trained)]:
            self._watches.remove(watch)
            for finding in watch.findings():
                self.notice(finding)


def init(
    *,
    seed: int = 0,
    mode: Literal["fast", "bitwise"] | None = None,
    shards: int | None = None,
    allow_drift: bool | None = None,
    timeout_s: float = 1800.0,
) -> Session:
    """Join the world that this process was launched into: one of N ranks, or alone.

    Sets the random generators from `seed`, the same on all ranks, so that what is made afterwards is equal.
    In mode "bitwise" the result has the same bits on any number of ranks up to `shards`, into which every
    global batch is cut; what would break that is refused, unless `allow_drift`. What is not given is as
    `samestep train` was told, or "fast".
    """
    if usercode.is_importing():
        raise ConfigError(
            "samestep.init() was called while the file was loaded for its Task, and its loop would have run "
            "there. Start a script with a loop of its own as `samestep train --gpus N -- python FILE`; in a "
            'file that has both, put the loop under `if __name__ == "__main__":`.'
        )
    place, device = join(timeout_s)
    place = replace(
        place,
        shards=shards_of(mode, shards, place.shards),
        allow_drift=place.allow_drift if allow_drift is None else allow_drift,
    )
    session = Session(place, device, seed=seed)
    enter(session)
    atexit.register(session.close)
    return session


def shards_of(mode: str | None, shards: int | None, otherwise: int | None) -> int | None:
    """The number of shards that is meant, None for fast mode; `otherwise` if nothing is said."""
    if mode not in (None, "fast", "bitwise"):
        raise ConfigError(f"mode is {mode!r}; it must be 'fast' or 'bitwise'.")
    if shards is not None and (mode == "fast" or shards < 1):
        raise ConfigError(f"shards is {shards} in mode {mode!r}; shards (1 or more) need mode 'bitwise'.")
    if mode == "fast":
        return None
    if mode == "bitwise":
        return shards or otherwise or DEFAULT_SHARDS
    return shards or otherwise
