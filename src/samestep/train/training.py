"""Training: one run of a task, as hooks see it and as a checkpoint keeps it. The loop is in `loop.py`."""

import inspect
import math
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samestep.data.generators import Snapshot
from samestep.data.loader import Loader
from samestep.errors import ConfigError
from samestep.hooks import Hook
from samestep.record import RecordWriter
from samestep.task import Task
from samestep.train.checkpoint import FOLDER_NAME, Checkpoint, CheckpointFolder, load, resolve
from samestep.train.conditions import refuse_other_run
from samestep.train.evaluate import eval_loader, make_data, make_metrics
from samestep.train.model_state import load_model_state
from samestep.train.optimizer_state import load_optimizer_state, optimizer_state
from samestep.train.precision import scaler
from samestep.train.restore import make_model
from samestep.train.session import Session
from samestep.train.update import Update


class Training:
    """Everything that one run of a task consists of."""

    def __init__(self, task: Task, world: Session, out: Path, record: RecordWriter) -> None:
        for hook in task.hooks:
            if not isinstance(hook, Hook):
                raise ConfigError(f"The hook {hook!r} is no samestep.hooks.Hook; make its class one.")
        self.task = task
        self.world = world
        self.record = record
        self.checkpoints = CheckpointFolder(out / FOLDER_NAME, task.keep_last)
        if world.is_first:
            self.checkpoints.open_for_writing()
        train_data = make_data(task.train_data)
        self.loader = Loader(
            train_data, world=world, batch_size=task.batch_size, seed=task.seed, shuffle=task.shuffle,
            sampler=task.sampler, batch_sampler=task.batch_sampler, collate=task.collate,
            workers=task.workers, accumulate=task.accumulate, channels_last=task.channels_last,
            steps_per_epoch=task.steps_per_epoch or task.steps,
        )  # fmt: skip
        self.valid_loader = (
            None if task.valid_data is None else eval_loader(task, world, make_data(task.valid_data))
        )
        self.model = make_model(task, world, train_data)
        self.optimizer = _make_optimizer(task, self.model)
        self.stepper = world.stepper(self.optimizer, scaler(task, world), update=_update_of(task))
        self.schedule = task.schedule(self.optimizer) if task.schedule is not None else None
        self.metrics = make_metrics(task, world)
        self.ema: AveragedModel | None = None
        if task.ema_decay is not None:
            average = get_ema_multi_avg_fn(task.ema_decay)
            self.ema = AveragedModel(self.model, multi_avg_fn=average, use_buffers=True)
        if task.compile:
            # a kernel for any size, made after some were seen, would depend on which a rank has seen
            self.model.compile(dynamic=None if world.shards is None else False)
        self.num_examples = 0
        self.epoch_loss_sum = self.epoch_weight = 0.0
        self.best_value: float | None = None
        self.values: dict[str, float] = {}
        self.stop_reason: str | None = None

    @property
    def step(self) -> int:
        """Steps done so far, over all epochs."""
        return self.stepper.num_steps

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0; between epochs, the next."""
        return self.loader.epoch

    @property
    def loss(self) -> float:
        """The loss of the last step over all ranks; reading it waits for the device."""
        return self.stepper.totals.loss if self.stepper.totals is not None else math.nan

    @property
    def learning_rate(self) -> float:
        """That of the optimizer's first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def evaluated_model(self) -> nn.Module:
        """The model that is validated: the averaged one, where there is one."""
        return self.model if self.ema is None else self.ema.module

    @property
    def monitor(self) -> str:
        """The name of the value that decides what is best; one of training where nothing is validated."""
        name = self.task.monitor
        return name if self.valid_loader is not None else name.replace("valid/", "train/", 1)

    @property
    def num_steps(self) -> int | None:
        """The steps of the whole run, where they are known beforehand."""
        per_epoch, epochs = self.loader.num_steps, self.task.epochs
        known = per_epoch * epochs if per_epoch is not None and epochs is not None else None
        return min((n for n in (known, self.task.steps) if n is not None), default=None)

    @property
    def is_over(self) -> bool:
        task = self.task
        return (
            self.stop_reason is not None
            or (task.steps is not None and self.step >= task.steps)
            or (task.epochs is not None and self.epoch >= task.epochs)
        )

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

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, free of the world; all ranks call it."""
        # validation begins with empty metrics; those of training may be in the middle of an epoch
        metrics = {} if self.valid_loader is not None else self.metrics
        sections = {
            "model": dict(self.model.state_dict()),
            "optimizer": optimizer_state(self.optimizer, self.model, self.stepper.optimizer_states()),
            "training": {
                "stepper": self.stepper.state(),
                "loader": self.loader.state(),
                "schedule": None if self.schedule is None else self.schedule.state_dict(),
                "num_examples": self.num_examples,
                "epoch_loss_sum": self.epoch_loss_sum,
                "epoch_weight": self.epoch_weight,
                "metrics": {name: self._metric_state(metric) for name, metric in metrics.items()},
                "best_value": self.best_value,
                "values": self.values,
                "hooks": {name: hook.state_dict() for name, hook in self._hooks_with_state().items()},
                "generators": Snapshot().to_tree(),
                "num_averaged": None if self.ema is None else self.ema.n_averaged,
            },
        }
        if self.ema is not None:
            sections["ema"] = dict(self.ema.module.state_dict())
        return sections

    def resume(self, source: bool | str | Path) -> None:
        """Go on from a checkpoint: of this run's own folder, or the one named; False begins anew."""
        if source is False:
            return
        # one rank looks and tells: a damaged file or a slow disk must not make ranks choose differently
        path = ""
        if self.world.is_first and (source is not True or self.checkpoints.latest() is not None):
            path = str(resolve(self.checkpoints.folder if source is True else Path(source)))
        path = self.world.broadcast_text(path)
        if not path:
            return
        checkpoint = load(Path(path))
        refuse_other_run(self.world, checkpoint)
        self.restore(checkpoint)
        self.record.event("restored", checkpoint=path, step=self.step)

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
        self.epoch_loss_sum, self.epoch_weight = training["epoch_loss_sum"], training["epoch_weight"]
        for name, state in training["metrics"].items():
            if name in self.metrics:
                self._load_metric_state(self.metrics[name], state)
        self.best_value, self.values = training["best_value"], training["values"]
        for name, hook in self._hooks_with_state().items():
            if name in training["hooks"]:
                hook.load_state_dict(training["hooks"][name])
        Snapshot.from_tree(training["generators"]).restore()
        if self.ema is not None and "ema" in sections:
            load_model_state(self.ema.module, sections["ema"], checkpoint.path)
            self.ema.n_averaged.copy_(training["num_averaged"])

    def _hooks_with_state(self) -> dict[str, Any]:
        """Hooks that a checkpoint keeps, by class and number, so that new ones among them do no harm."""
        named: dict[str, Any] = {}
        for hook in self.task.hooks:
            if hasattr(hook, "state_dict") and hasattr(hook, "load_state_dict"):
                kind = type(hook).__name__
                named[f"{kind} {sum(type(h).__name__ == kind for h in named.values())}"] = hook
        return named

    # torchmetrics takes most of a second to load, and not every run has metrics

    def _metric_state(self, metric: Any) -> dict[str, Any]:
        from samestep.metrics import state_of

        return state_of(metric, self.world)

    def _load_metric_state(self, metric: Any, state: dict[str, Any]) -> None:
        from samestep.metrics import load_state

        load_state(metric, state, self.world)


def _update_of(task: Task) -> Update:
    """The update that the task asks for; whole if it leaves that open and a hook could look at gradients."""
    looks_on = any(type(hook).after_step is not Hook.after_step for hook in task.hooks)
    return "whole" if task.update == "auto" and looks_on else task.update


def _make_optimizer(task: Task, model: nn.Module) -> Optimizer:
    """The task's optimizer; its function may ask for the model by calling its argument so."""
    names = [*inspect.signature(task.optimizer).parameters]
    optimizer = task.optimizer(model if names[:1] == ["model"] else model.parameters())
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"The task's optimizer() returned {type(optimizer).__name__}, not a torch.optim.Optimizer."
        )
    return optimizer
