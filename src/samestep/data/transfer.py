"""Batches of any structure, moved to a device."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch


def to_device(batch: Any, device: torch.device, *, channels_last: bool = False) -> Any:
    """The batch with its tensors on `device`, in any nesting of containers, dataclasses and named tuples.

    An object of another class that has a method `to` moves itself; what has none is passed on as it is.
    """
    if isinstance(batch, torch.Tensor):
        if channels_last and batch.dim() == 4:
            return batch.to(device, non_blocking=True, memory_format=torch.channels_last)
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        moved = {key: to_device(item, device, channels_last=channels_last) for key, item in batch.items()}
        return moved if type(batch) is dict else type(batch)(moved)
    if isinstance(batch, list | tuple):
        items = [to_device(item, device, channels_last=channels_last) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(
            batch,
            **{
                field.name: to_device(getattr(batch, field.name), device, channels_last=channels_last)
                for field in fields(batch)
                if field.init
            },
        )
    if callable(move := getattr(batch, "to", None)):
        return move(device)
    return batch
