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
from samestep.errors import ConfigError
from samestep.keys import derive
from samestep.task import Task
from samestep.train.checkpoint import load, resolve
from samestep.train.model_state import load_model_state
from samestep.train.session import Session


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
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub forgot it
    if any(is_lazy(parameter) for parameter in model.parameters()):
        _show_one_example(task, world, model, dataset)
    return world.replicate(model)


def restored_model(task: Task, world: Session, checkpoint: Path, dataset: Any) -> tuple[nn.Module, Path, int]:
    """The task's model with the weights of a checkpoint (the averaged ones, if any), its path and step."""
    # one rank looks and tells: a damaged file must not make ranks choose differently
    path = Path(world.broadcast_text(str(resolve(checkpoint)) if world.is_first else ""))
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
