"""Making a task's model, and giving it the weights of a checkpoint."""

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import IterableDataset, default_collate

from samestep.data.generators import Stream
from samestep.data.transfer import to_device
from samestep.errors import CheckpointError, ConfigError
from samestep.keys import derive
from samestep.task import Task
from samestep.train.checkpoint import load, resolve
from samestep.train.session import Session

_MOST_NAMED = 5


def make_model(task: Task, world: Session, dataset: Any) -> nn.Module:
    """The task's model as a replica on this rank's device, made from the task's seed.

    A model with lazy layers sees one example of `dataset` first, so that they know their shapes.
    """
    model = task.model()
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"The task's model() returned {type(model).__name__}; it must return a torch.nn.Module."
        )
    model.to(world.device)
    if task.channels_last:
        model.to(memory_format=torch.channels_last)
    if any(is_lazy(parameter) for parameter in model.parameters()):
        _show_one_example(task, world, model, dataset)
    return world.replicate(model)


def load_model_state(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    """Put the weights and buffers of a checkpoint into the model, by name."""
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    extra = [name for name in state if name not in own]
    shapes = [
        f"{name} is {tuple(state[name].shape)} there and {tuple(value.shape)} here"
        for name, value in own.items()
        if name in state and isinstance(value, torch.Tensor) and state[name].shape != value.shape
    ]
    if missing or extra or shapes:
        parts = [
            f"it lacks {_listed(missing)}" if missing else "",
            f"it has {_listed(extra)} besides" if extra else "",
            _listed(shapes),
        ]
        raise CheckpointError(
            f"The checkpoint {path} is of another model: {'; '.join(part for part in parts if part)}."
        )
    model.load_state_dict(state)


def restored_model(task: Task, world: Session, checkpoint: Path, dataset: Any) -> tuple[nn.Module, Path, int]:
    """The task's model with the weights of a checkpoint (averaged ones, if it keeps any), its path and step."""
    path = resolve(checkpoint)
    found = load(path)
    model = make_model(task, world, dataset)
    load_model_state(model, found.sections.get("ema") or found.sections["model"], path)
    return model, path, found.step


def _show_one_example(task: Task, world: Session, model: nn.Module, dataset: Any) -> None:
    with Stream(derive(task.seed, "lazy")).active():
        examples = list(islice(dataset, 1)) if isinstance(dataset, IterableDataset) else [dataset[0]]
        batch = (task.collate or default_collate)(examples)
        was_training = model.training
        # in evaluation mode: a batch norm would refuse a single value, and keep its statistics
        model.eval()
        with torch.no_grad():
            task.loss(model, to_device(batch, world.device, channels_last=task.channels_last))
        model.train(was_training)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
