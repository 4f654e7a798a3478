"""The state of an optimizer that holds slices: made whole for checkpoints, and cut when it comes from one.

State that has the shape of its parameter is cut like the parameter. All else, such as counts of steps, is the
same on all ranks: numbers without dimensions, or plain ones.
"""

import json
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from samestep.train.exchange import view_of
from samestep.train.slices import Piece, SliceBucket, Slices, in_memory_order
from samestep.world import World

States = dict[Any, Any]
"""As in `optimizer.state`: entries by parameter, or under a key of the optimizer's own."""


def cut_states(optimizer: Optimizer, slices: Slices) -> None:
    """Keep, of state that the optimizer has for whole parameters, that of this rank's pieces."""
    pieces = {id(piece.parameter): piece for piece in slices.pieces}
    for bucket in slices.buckets:
        for parameter in bucket.parameters:
            if parameter not in optimizer.state:
                continue
            entries = optimizer.state.pop(parameter)
            piece = pieces.get(id(parameter))
            if piece is not None:
                optimizer.state[piece.held] = {key: _cut(value, piece) for key, value in entries.items()}


def whole_states(optimizer: Optimizer, slices: Slices, world: World) -> States:
    """The optimizer's state with the pieces of all ranks put together; all ranks call it."""
    places = {id(piece.held): (b, i) for b, i, piece in _placed(slices)}
    told: dict[str, Any] = {}
    states: States = {}
    key: Any
    for key, entries in optimizer.state.items():
        if id(key) in places:
            told["{}.{}".format(*places[id(key)])] = {name: _told(value) for name, value in entries.items()}
        else:
            states[key] = entries
    everybody: dict[str, Any] = {}
    for text in world.gather_texts(json.dumps(told)):
        everybody |= json.loads(text)
    for number, bucket in enumerate(slices.buckets):
        # ranks heard the same, and so gather the same in the same order
        described = {i: everybody.get(f"{number}.{i}") for i in range(len(bucket.parameters))}
        known = {i: entries for i, entries in described.items() if entries}
        for i, entries in known.items():
            states[bucket.parameters[i]] = {
                name: _untold(value, bucket.parameters[i].device) for name, value in entries.items()
            }
        cut = sorted({(name, e[name]["cut"]) for e in known.values() for name in e if "cut" in e[name]})
        for name, dtype in cut:
            flat = _gathered(optimizer, bucket, name, getattr(torch, dtype), world)
            for i, entries in known.items():
                if entries.get(name, {}).get("cut") == dtype:
                    parameter, offset = bucket.parameters[i], bucket.offsets[i]
                    part = flat[offset : offset + parameter.numel()]
                    states[parameter][name] = view_of(part, parameter)
    return states


def uncut_states(optimizer: Optimizer, slices: Slices, world: World) -> None:
    """Give the optimizer whole state again; all ranks call it."""
    states = whole_states(optimizer, slices, world)
    optimizer.state.clear()
    optimizer.state.update(states)


def _placed(slices: Slices) -> list[tuple[int, int, Piece]]:
    """Each piece with the numbers of its bucket and of its parameter in it."""
    return [
        (number, i, piece)
        for number, bucket in enumerate(slices.buckets)
        for i, parameter in enumerate(bucket.parameters)
        for piece in bucket.pieces
        if piece.parameter is parameter
    ]


def _gathered(
    optimizer: Optimizer, bucket: SliceBucket, name: str, dtype: torch.dtype, world: World
) -> Tensor:
    flat = torch.zeros(bucket.numel, dtype=dtype, device=bucket.parameters[0].device)
    offsets = dict(zip(map(id, bucket.parameters), bucket.offsets, strict=True))
    for piece in bucket.pieces:
        value = optimizer.state.get(piece.held, {}).get(name)
        if isinstance(value, Tensor) and value.dim() and value.dtype == dtype:
            offset = offsets[id(piece.parameter)]
            flat[offset + piece.first : offset + piece.last].copy_(value)
    world.gather_slices_(bucket.slices_of(flat)).wait()
    return flat


def _cut(value: Any, piece: Piece) -> Any:
    if isinstance(value, Tensor) and value.dim() and value.shape == piece.parameter.shape:
        # as the parameter lies in memory, whatever the state does
        laid = torch.empty_like(piece.parameter.detach(), dtype=value.dtype).copy_(value)
        return in_memory_order(laid)[piece.first : piece.last].clone()
    return value


def _told(value: Any) -> dict[str, Any]:
    if not isinstance(value, Tensor):
        return {"plain": value}
    dtype = str(value.dtype).removeprefix("torch.")
    if value.dim():
        return {"cut": dtype}
    return {"number": value.item(), "dtype": dtype, "on_host": value.is_cpu}


def _untold(told: dict[str, Any], device: torch.device) -> Any:
    if "number" not in told:
        return told.get("plain")
    return torch.tensor(
        told["number"],
        dtype=getattr(torch, told["dtype"]),
        device="cpu" if told["on_host"] else device,
    )
