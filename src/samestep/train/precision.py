"""Precision: autocast and the loss scaler that a task asks for."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.amp import GradScaler

from samestep.task import Task
from samestep.world import World

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(task: Task, world: World) -> AbstractContextManager[object]:
    """The context in which the task's loss is computed."""
    if task.precision == "fp32":
        return nullcontext()
    return torch.autocast(world.device.type, _DTYPES[task.precision])


def scaler(task: Task, world: World) -> GradScaler | None:
    """The scaler of the loss, which fp16 needs. It looks at summed gradients, so all ranks decide alike."""
    return GradScaler(world.device.type) if task.precision == "fp16" else None
