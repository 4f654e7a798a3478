"""Prediction: outputs for each example exactly once, in the order of the data set, on any number of ranks."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep.data.loader import Loader
from samestep.errors import ConfigError, DataError
from samestep.task import Task
from samestep.train.arrayfile import GrowingArray
from samestep.train.evaluate import as_loss, data_of, eval_loader
from samestep.train.precision import autocast
from samestep.train.restore import restored_model
from samestep.train.session import Session

Named = dict[str, Tensor]


def predictions(task: Task, world: Session, model: nn.Module, loader: Loader) -> Iterator[Named]:
    """Outputs batch by batch: named arrays with one row an example, in order, the same on all ranks.

    An output that is a list with one tensor an example (of any shapes) comes as two arrays, `name.values`
    with all numbers one after the other and `name.shapes` with a row for each example.
    """
    model.eval()
    for batches in loader.by_step():
        shards: list[Named] = []
        for batch in batches:
            with torch.no_grad(), autocast(task, world), world.evaluation():
                outputs = _outputs(task, model, batch)
            assert world.share is not None
            shards.append(_named(outputs, world.share.count))
        own = {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]} if shards else {}
        yield _gathered(world, own)


def predict_checkpoint(
    task: Task, world: Session, out: Path, checkpoint: str | Path, data: str
) -> dict[str, Any]:
    """Predict with the model of a checkpoint, into one `.npy` file an output; for `samestep predict`."""
    dataset = data_of(task, data)
    model, path, step = restored_model(task, world, Path(checkpoint), dataset)
    folder = out / "predictions"
    files: dict[str, GrowingArray] = {}
    num_examples = 0
    for arrays in predictions(task, world, model, eval_loader(task, world, dataset)):
        if not world.is_first:
            continue
        num_examples += min(
            (len(array) for name, array in arrays.items() if not name.endswith(".values")), default=0
        )
        for name, array in arrays.items():
            if name not in files:
                folder.mkdir(parents=True, exist_ok=True)
                files[name] = GrowingArray(folder / f"{name}.npy")
            files[name].append(_as_numpy(array))
    for file in files.values():
        file.close()
    return {
        "examples": num_examples,
        "files": [str(file.path) for file in files.values()],
        "data": data,
        "step": step,
        "checkpoint": str(path),
        "out": str(out),
    }


def _outputs(task: Task, model: nn.Module, batch: Any) -> Any:
    if task.predict is not None:
        return task.predict(model, batch)
    outputs = as_loss(task.loss(model, batch)).outputs
    if outputs is None:
        raise ConfigError(
            "The task cannot predict: give it a function predict(model, batch), or return the outputs "
            "with the loss, as samestep.Loss(sum, weight, outputs=…)."
        )
    return outputs


def _named(outputs: Any, num_examples: int, name: str = "output") -> Named:
    """The outputs of this rank as named tensors on the host, with one row an example.

    Tuples and dicts hold several outputs; a list holds one tensor an example, of whatever shape.
    """
    if isinstance(outputs, Tensor):
        if outputs.dim() == 0 or len(outputs) != num_examples:
            raise DataError(
                f"The {name} has shape {tuple(outputs.shape)} for {num_examples} examples; it needs one row "
                "an example."
            )
        return {name: outputs.detach().cpu()}
    if isinstance(outputs, list):
        return _ragged(outputs, num_examples, name)
    if isinstance(outputs, dict):
        # a name becomes the name of a file
        parts = [_named(o, num_examples, re.sub(r"[^\w.-]+", "-", str(key))) for key, o in outputs.items()]
    elif isinstance(outputs, tuple):
        parts = [_named(item, num_examples, f"{name}_{i}") for i, item in enumerate(outputs)]
    else:
        raise DataError(
            f"The {name} is {type(outputs).__name__}; predictions are tensors, dicts or tuples of these, or "
            "lists with one tensor an example."
        )
    return {key: tensor for part in parts for key, tensor in part.items()}


def _ragged(outputs: list[Any], num_examples: int, name: str) -> Named:
    dims = {item.dim() if isinstance(item, Tensor) else None for item in outputs}
    if len(outputs) != num_examples or len(dims) != 1 or None in dims:
        raise DataError(
            f"The {name} is a list of {len(outputs)} for {num_examples} examples; a list holds one tensor an "
            "example, all with one number of dimensions. Return several outputs as a tuple or a dict."
        )
    return {
        f"{name}.values": torch.cat([item.detach().reshape(-1) for item in outputs]).cpu(),
        f"{name}.shapes": torch.tensor([list(item.shape) for item in outputs], dtype=torch.int64),
    }


def _gathered(world: Session, own: Named) -> Named:
    """The rows of all ranks, in rank order, which is the order of the data set."""
    layout = json.dumps(
        [[name, str(t.dtype).removeprefix("torch."), list(t.shape[1:])] for name, t in own.items()]
    )
    layouts = [json.loads(text) for text in world.gather_texts(layout)]
    filled = [layout for layout in layouts if layout]
    if any(layout != filled[0] for layout in filled):
        raise DataError(
            "The outputs of one batch have other shapes on other ranks "
            f"({filled[0]} and {next(layout for layout in filled if layout != filled[0])}); return a list "
            "with one tensor an example where shapes vary."
        )
    result = {}
    for name, dtype, row in filled[0]:
        mine = own.get(name)
        if mine is None:  # no example for this rank in the last batch
            mine = torch.empty((0, *row), dtype=getattr(torch, dtype))
        result[name] = torch.cat(world.gather_rows(mine))
    return result


def _as_numpy(tensor: Tensor) -> "np.ndarray[Any, Any]":
    # NumPy has no bfloat16; float32 holds every value of it
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
