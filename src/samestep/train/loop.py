"""The training loop, from top to bottom: what a task means, on any number of ranks."""

import inspect
import math
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samestep.data.generators import Snapshot
from samestep.data.loader import Loader
from samestep.errors import ConfigError, DataError
from samestep.findings import Finding
from samestep.metrics import load_state, state_of
from samestep.record import RecordWriter
from samestep.task import Task
from samestep.train import stop
from samestep.train.checkpoint import FOLDER_NAME, Checkpoint, CheckpointFolder, load, resolve
from samestep.train.evaluate import (
    as_loss,
    computed,
    eval_loader,
    evaluate,
    make_data,
    make_metrics,
    update_metrics,
)
from samestep.train.hooks import Hook
from samestep.train.precision import autocast, scaler
from samestep.train.restore import load_model_state, make_model
from samestep.train.session import Session
from samestep.train.state import digest, load_optimizer_state, optimizer_state
from samestep.train.step import NonFiniteLoss, Totals


def train(
    task: Task, world: Session, *, out: Path, resume: bool | str | Path, record: RecordWriter
) -> dict[str, Any]:
    """Train a task to its end; returns what `samestep train` tells about the run."""
    world.reset(task.seed)
    world.on_finding = record.finding
    training = Training(task, world, out, record)
    training.resume(resume)
    return training.run()


class _Seen(NamedTuple):
    """A step whose totals have not been read yet."""

    step: int
    epoch: int
    num_examples: int
    learning_rate: float
    step_s: float
    totals: Totals


class Training:
    """One run of a task: what hooks see, and what a checkpoint keeps."""

    def __init__(self, task: Task, world: Session, out: Path, record: RecordWriter) -> None:
        self.task = task
        self.world = world
        self.record = record
        self.num_examples = 0
        self.stop_reason: str | None = None
        train_data = make_data(task.train_data)
        self.model = make_model(task, world, train_data)
        self.optimizer = _make_optimizer(task, self.model)
        self.schedule = task.schedule(self.optimizer) if task.schedule is not None else None
        self.stepper = world.stepper(self.optimizer, scaler(task, world))
        self.loader = Loader(
            train_data, world=world, batch_size=task.batch_size, seed=task.seed, shuffle=task.shuffle,
            sampler=task.sampler, batch_sampler=task.batch_sampler, collate=task.collate,
            workers=task.workers, accumulate=task.accumulate, steps_per_epoch=task.steps_per_epoch or task.steps,
            channels_last=task.channels_last,
        )  # fmt: skip
        self.valid_loader = (
            None if task.valid_data is None else eval_loader(task, world, make_data(task.valid_data))
        )
        self.metrics = make_metrics(task, world)
        self.ema = None
        if task.ema_decay is not None:
            self.ema = AveragedModel(
                self.model, multi_avg_fn=get_ema_multi_avg_fn(task.ema_decay), use_buffers=True
            )
        if task.compile:
            self.model.compile()
        self.checkpoints = CheckpointFolder(out / FOLDER_NAME, task.keep_last)
        if world.is_first:
            self.checkpoints.open_for_writing()
        for hook in task.hooks:
            if not isinstance(hook, Hook):
                raise ConfigError(f"The hook {hook!r} is no samestep.train.hooks.Hook; make its class one.")
        self._autocast = autocast(task, world)
        self._stop_on_nan = any(getattr(hook, "stop_on_nan", False) for hook in task.hooks)
        self._unread: deque[_Seen] = deque()
        self._epoch_loss_sum = self._epoch_weight = 0.0
        self._best: float | None = None
        self._was_interrupted = False
        self._saved_place: tuple[int, int] | None = None
        self._last_values: dict[str, float] = {}
        self._clock = time.perf_counter()

    @property
    def step(self) -> int:
        """Steps done so far, over all epochs."""
        return self.stepper.num_steps

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self.loader.epoch

    @property
    def loss(self) -> float:
        """The loss of the last step over all ranks; reading it waits for the device."""
        return self.stepper.totals.loss if self.stepper.totals is not None else math.nan

    @property
    def monitor(self) -> str:
        """The name of the value that decides what is best; of training where nothing is validated."""
        name = self.task.monitor
        return name if self.valid_loader is not None else name.replace("valid/", "train/", 1)

    def value_of(self, name: str, values: dict[str, float]) -> float:
        """A value of the epoch by name."""
        if name not in values:
            raise ConfigError(
                f"{name!r} is to be monitored, but the values of an epoch are {', '.join(values)}."
            )
        return values[name]

    def stop(self, reason: str) -> None:
        """Stop after this step; hooks see the same values on all ranks, and so decide alike."""
        self.stop_reason = self.stop_reason or reason

    def run(self) -> dict[str, Any]:
        """Train to the end, or until somebody wishes to stop; the result as `samestep train` tells it."""
        self._describe()
        for hook in self.task.hooks:
            hook.before_training(self)
        self.model.train()
        while not self._is_over():
            before = self.step
            self._run_steps()
            self._read_totals(keep=0)
            if self._was_interrupted:
                break
            self._end_epoch()
            if self.step == before and self.task.epochs is None:
                raise DataError("An epoch had no examples at all; the sampler yields nothing.")
        for hook in self.task.hooks:
            hook.after_training(self)
        self._save()
        self.checkpoints.wait()
        return self._result()

    def _run_steps(self) -> None:
        """The steps of one epoch, or of what is left of it."""
        task, world = self.task, self.world
        every_step = self.schedule if self._steps_schedule_every("step") else None
        for batch in self.loader:
            learning_rate = float(self.optimizer.param_groups[0]["lr"])
            try:
                with world.step(
                    self.optimizer,
                    clip_norm=task.clip_norm,
                    schedule=every_step,
                    stop_on_nan=self._stop_on_nan,
                ) as step:
                    with self._autocast:
                        loss = as_loss(task.loss(self.model, batch))
                    step.backward(*loss)
            except NonFiniteLoss as error:
                self._interrupt(str(error))
                return
            assert world.share is not None
            self.num_examples += world.share.total
            if self.valid_loader is None and not world.is_idle:
                update_metrics(task, self.metrics, loss, self.model, batch)
            if step.is_last_turn:
                self._after_step(learning_rate, step.totals)
                if self._is_over():
                    return

    def _after_step(self, learning_rate: float, totals: Totals) -> None:
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        now = time.perf_counter()
        self._unread.append(
            _Seen(self.step, self.epoch, self.num_examples, learning_rate, now - self._clock, totals)
        )
        self._clock = now
        self._read_totals(keep=1)
        for hook in self.task.hooks:
            hook.after_step(self)
        every = self.task.checkpoint_every
        if every is not None and self.step % every == 0:
            self._save()

    def _read_totals(self, *, keep: int) -> None:
        """Read what the steps before the last `keep` saw: by then it is there, and nobody waits for it."""
        while len(self._unread) > keep:
            seen = self._unread.popleft()
            loss_sum, weight, wish = seen.totals.read()
            self._epoch_loss_sum += loss_sum
            self._epoch_weight += weight
            values = {
                "epoch": seen.epoch,
                "examples": seen.num_examples,
                "loss": loss_sum / weight if weight else math.nan,
            }
            if seen.totals.grad_norm is not None:
                values["grad_norm"] = float(seen.totals.grad_norm)
            self.record.step(seen.step, **values, lr=seen.learning_rate, step_s=seen.step_s)
            if not math.isfinite(loss_sum):
                self.world.notice(_loss_not_finite(seen.step, loss_sum))
            if wish:
                self._interrupt(stop.requested() or "another rank was asked to stop")

    def _end_epoch(self) -> None:
        values = {"train/loss": self._epoch_loss_sum / self._epoch_weight if self._epoch_weight else math.nan}
        if self.valid_loader is not None:
            model = self.model if self.ema is None else self.ema.module
            found = evaluate(self.task, self.world, model, self.valid_loader, self.metrics)
            values |= {f"valid/{name}": value for name, value in found.items()}
        else:
            values |= {f"train/{name}": value for name, value in computed(self.world, self.metrics).items()}
        self._forget_epoch()
        self._last_values = values
        self.record.epoch(
            self.epoch, step=self.step, values=values, lr=float(self.optimizer.param_groups[0]["lr"])
        )
        if isinstance(self.schedule, ReduceLROnPlateau):
            self.schedule.step(self.value_of(self.monitor, values))
        elif self._steps_schedule_every("epoch"):
            assert self.schedule is not None
            self.schedule.step()
        for hook in self.task.hooks:
            hook.after_epoch(self, values)
        is_best = self._is_best(self.value_of(self.monitor, values))
        if is_best or self.task.checkpoint_every is None:
            self._save(best=is_best)
        self._clock = time.perf_counter()

    def _steps_schedule_every(self, what: str) -> bool:
        plain = self.schedule is not None and not isinstance(self.schedule, ReduceLROnPlateau)
        return plain and self.task.schedule_every == what

    def _forget_epoch(self) -> None:
        self._epoch_loss_sum = self._epoch_weight = 0.0
        for metric in self.metrics.values():
            metric.reset()

    def _is_best(self, value: float) -> bool:
        sign = 1.0 if self.task.monitor_mode == "min" else -1.0
        if math.isnan(value) or (self._best is not None and sign * value >= sign * self._best):
            return False
        self._best = value
        return True

    def _is_over(self) -> bool:
        task = self.task
        return (
            self.stop_reason is not None
            or (task.steps is not None and self.step >= task.steps)
            or (task.epochs is not None and self.epoch >= task.epochs)
        )

    def _interrupt(self, reason: str) -> None:
        self.stop(reason)
        self._was_interrupted = True

    def resume(self, source: bool | str | Path) -> None:
        """Go on from a checkpoint: of this run's own folder, or the one named; False begins anew."""
        if source is False or (source is True and self.checkpoints.latest() is None):
            return
        path = resolve(self.checkpoints.folder if source is True else Path(source))
        self.restore(load(path))
        self.record.event("restored", checkpoint=str(path), step=self.step)

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, free of the world; all ranks call it."""
        sections = {
            "model": dict(self.model.state_dict()),
            "optimizer": optimizer_state(self.optimizer, self.model),
            "training": {
                "stepper": self.stepper.state(),
                "loader": self.loader.state(),
                "schedule": None if self.schedule is None else self.schedule.state_dict(),
                "num_examples": self.num_examples,
                "epoch_loss_sum": self._epoch_loss_sum,
                "epoch_weight": self._epoch_weight,
                "metrics": {}
                if self.valid_loader
                else {n: state_of(m, self.world) for n, m in self.metrics.items()},
                "best": self._best,
                "hooks": [
                    hook.state_dict() if hasattr(hook, "state_dict") else None for hook in self.task.hooks
                ],
                "generators": Snapshot().to_tree(),
                "num_averaged": None if self.ema is None else self.ema.n_averaged,
            },
        }
        if self.ema is not None:
            sections["ema"] = dict(self.ema.module.state_dict())
        return sections

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put back what `state` gave, perhaps on another world."""
        sections, training = checkpoint.sections, checkpoint.sections["training"]
        load_model_state(self.model, sections["model"], checkpoint.path)
        load_optimizer_state(self.optimizer, self.model, sections["optimizer"])
        self.stepper.load_state(training["stepper"])
        self.loader.load_state(training["loader"])
        if self.schedule is not None and training["schedule"] is not None:
            self.schedule.load_state_dict(training["schedule"])
        self.num_examples = training["num_examples"]
        self._epoch_loss_sum, self._epoch_weight = training["epoch_loss_sum"], training["epoch_weight"]
        for name, state in training["metrics"].items():
            if name in self.metrics:
                load_state(self.metrics[name], state, self.world)
        self._best = training["best"]
        for hook, state in zip(self.task.hooks, training["hooks"], strict=False):
            if state is not None and hasattr(hook, "load_state_dict"):
                hook.load_state_dict(state)
        Snapshot.from_tree(training["generators"]).restore()
        if self.ema is not None and "ema" in sections:
            load_model_state(self.ema.module, sections["ema"], checkpoint.path)
            self.ema.n_averaged.copy_(training["num_averaged"])

    def _save(self, *, best: bool = False) -> None:
        self._read_totals(keep=0)
        place = (self.step, self.epoch)
        if place == self._saved_place and not best:
            return
        self._saved_place = place
        sections = self.state()
        if self.world.is_first:
            about = {"world_size": self.world.size, "epoch": self.epoch, "seed": self.task.seed}
            self.checkpoints.save(self.step, sections, about, best=best)
        self.record.event("checkpoint", step=self.step, best=best)

    def _num_steps(self) -> int | None:
        """The steps of the whole run, where they are known beforehand."""
        per_epoch, task = self.loader.num_steps, self.task
        known = per_epoch * task.epochs if per_epoch is not None and task.epochs is not None else None
        return min((n for n in (known, task.steps) if n is not None), default=None)

    def _describe(self) -> None:
        self.record.describe(
            batch_size=self.task.batch_size,
            accumulate=self.task.accumulate,
            precision=self.task.precision,
            num_steps=self._num_steps(),
            steps_per_epoch=self.loader.num_steps,
            num_epochs=self.task.epochs,
            resumed_at_step=self.step,
        )

    def _result(self) -> dict[str, Any]:
        state = self.state()
        own = digest({name: state[name] for name in ("model", "optimizer")})
        if len(set(self.world.gather_texts(own))) > 1:
            self.world.notice(_replicas_differ(self.world.gather_texts(own)))
        return {
            "status": "stopped" if self._was_interrupted else "finished",
            "stop_reason": self.stop_reason,
            "digest": own,
            "world_size": self.world.size,
            "mode": "fast",
            "steps": self.step,
            "examples": self.num_examples,
            "epochs": self.epoch,
            "values": self._last_values,
            "findings": [finding.to_json() for finding in self.world.findings],
        }


def _make_optimizer(task: Task, model: nn.Module) -> Optimizer:
    """The task's optimizer; its function may ask for the model by calling its argument so."""
    names = [*inspect.signature(task.optimizer).parameters]
    optimizer = task.optimizer(model if names[:1] == ["model"] else model.parameters())
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"The task's optimizer() returned {type(optimizer).__name__}, not a torch.optim.Optimizer."
        )
    return optimizer


def _loss_not_finite(step: int, loss_sum: float) -> Finding:
    return Finding(
        cause="loss-not-finite",
        message=f"The loss of step {step} is {loss_sum}.",
        evidence={"step": step},
        fix="Lower the learning rate, clip the gradient (clip_norm), or add the hook StopOnNaN to keep good weights.",
    )


def _replicas_differ(digests: list[str]) -> Finding:
    return Finding(
        cause="replicas-differ",
        message="The ranks did not end with the same weights, buffers and optimizer state.",
        evidence={"digests": digests},
        fix="Look for updates outside of world.step, and for layers that keep statistics of their own rank.",
    )
