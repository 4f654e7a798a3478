"""Evaluation: each example exactly once, values from merged sums, on any number of ranks.

Sums are kept apart by shard and added up in one fixed order, so that in bitwise mode their bits do not depend
on the world: they decide about schedules, early stops and the best checkpoint.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep.data.loader import Loader
from samestep.errors import ConfigError, LossError
from samestep.task import Batch, Loss, Task
from samestep.train.precision import autocast
from samestep.train.restore import restored_model
from samestep.train.session import Session
from samestep.train.tree import Node, TreeSum


def evaluate(
    task: Task, world: Session, model: nn.Module, loader: Loader, metrics: Mapping[str, Any]
) -> dict[str, float]:
    """The loss and the metrics of `model` on the loader's examples; the same values on all ranks."""
    was_training = model.training
    model.eval()
    # in fast mode a rank is a shard
    sums = torch.zeros(world.shards or world.size, 2, dtype=torch.float64, device=world.device)
    for metric in metrics.values():
        metric.reset()
    with torch.no_grad(), autocast(task, world):
        for batch in loader:
            with world.evaluation():
                loss = as_loss(task.loss(model, batch))
                update_metrics(task, metrics, loss, partial(_predicted, task, model, batch), batch)
            assert world.share is not None
            sums[world.share.shard, 0] += loss.sum
            sums[world.share.shard, 1] += loss.weight
    loss_sum, weight = _added_up(world, sums).tolist()
    model.train(was_training)
    return {"loss": loss_sum / weight if weight else math.nan, **computed(world, metrics)}


def _added_up(world: Session, sums: Tensor) -> Tensor:
    """The sum over all shards, of which each has a row; a row is zero but on the rank of its shard."""
    world.sum_(sums).wait()
    tree = TreeSum(Tensor.add)
    for shard, row in enumerate(sums.cpu()):
        tree.push(Node(shard, 1), row)
    return tree.total()


def computed(world: Session, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The values of metrics over all ranks, as named numbers."""
    return {
        key: number
        for name, metric in metrics.items()
        for key, number in _numbers(name, world.compute(metric)).items()
    }


def update_metrics(
    task: Task, metrics: Mapping[str, Any], loss: Loss, predict: Callable[[], Any] | None, batch: Batch
) -> None:
    """Feed one batch to the metrics, from the outputs that the loss returned or, without any, from `predict`.

    There is no second forward in training, which would move the statistics of norm layers twice.
    """
    if not metrics:
        return
    outputs = loss.outputs
    if outputs is None and predict is not None:
        outputs = predict()
    if outputs is None:
        raise ConfigError(
            "The task has metrics, but its loss returns no outputs for them: return "
            "samestep.Loss(sum, weight, outputs=…); with valid_data, a function `predict` does as well."
        )
    outputs = outputs.detach() if isinstance(outputs, torch.Tensor) else outputs
    arguments = task.score(outputs, batch) if task.score is not None else (outputs, batch[1])
    for metric in metrics.values():
        metric.update(*arguments)


def _predicted(task: Task, model: nn.Module, batch: Batch) -> Any:
    return None if task.predict is None else task.predict(model, batch)


def as_loss(result: Any) -> Loss:
    """What a task's loss returned, as a `Loss`."""
    if isinstance(result, Loss):
        return result
    if isinstance(result, tuple) and 2 <= len(result) <= 4:
        return Loss(*result)
    what = (
        f"a tensor of shape {tuple(result.shape)}" if isinstance(result, torch.Tensor)
        else f"a tuple of {len(result)}" if isinstance(result, tuple) else repr(result)
    )  # fmt: skip
    raise LossError(
        f"The task's loss returned {what}; it must return (sum of losses, sum of weights), so that ranks "
        "with different numbers of examples can be added up. For a mean over n examples: return mean * n, n."
    )


def make_metrics(task: Task, world: Session) -> dict[str, Any]:
    """New metrics of the task, on this rank's device and kept apart by shard."""
    if not task.metrics:  # torchmetrics takes most of a second to load
        return {}
    from samestep.metrics import ByShard

    return {name: ByShard(make().to(world.device), world) for name, make in task.metrics.items()}


def data_of(task: Task, split: str) -> Any:
    """The data set of a split: "train", "valid" or "test"."""
    choices = {"train": task.train_data, "valid": task.valid_data, "test": task.test_data}
    if split not in choices:
        raise ConfigError(f"There is no data {split!r}; choose train, valid or test.")
    dataset = choices[split]
    if dataset is None:
        given = ", ".join(name for name, data in choices.items() if data is not None)
        raise ConfigError(f"The task has no {split}_data; it has {given}.")
    return make_data(dataset)


def make_data(dataset: Any) -> Any:
    """A data set that was declared as it is, or by a function that makes it."""
    is_dataset = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
    return dataset if is_dataset and not isinstance(dataset, type) else dataset()


def eval_loader(task: Task, world: Session, dataset: Any) -> Loader:
    """The examples of `dataset` in its order, each on one rank."""
    return world.loader(
        dataset,
        batch_size=task.eval_batch_size or task.batch_size,
        seed=task.seed,
        train=False,
        collate=task.collate,
        workers=task.workers,
        channels_last=task.channels_last,
    )


def evaluate_checkpoint(
    task: Task, world: Session, out: Path, checkpoint: str | Path, data: str
) -> dict[str, Any]:
    """Evaluate the model of a checkpoint; for `samestep evaluate`."""
    dataset = data_of(task, data)
    model, path, step = restored_model(task, world, Path(checkpoint), dataset)
    loader = eval_loader(task, world, dataset)
    values = evaluate(task, world, model, loader, make_metrics(task, world))
    return {"values": values, "data": data, "step": step, "checkpoint": str(path), "out": str(out)}


def _numbers(name: str, value: Any) -> dict[str, float]:
    """A metric's value as named numbers: one, or one for each element or key."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {
            key: number
            for part, item in value.items()
            for key, number in _numbers(f"{name}/{part}", item).items()
        }
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        return {f"{name}/{i}": float(item) for i, item in enumerate(value.reshape(-1).tolist())}
    if isinstance(value, list | tuple):
        return {
            key: number
            for i, item in enumerate(value)
            for key, number in _numbers(f"{name}/{i}", item).items()
        }
    return {name: float(value)}
