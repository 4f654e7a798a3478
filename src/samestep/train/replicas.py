"""Whether all ranks hold the same model: by name, order, shape, dtype, trainable flag and value."""

import json
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from samestep.errors import ReplicaError, listed
from samestep.world import World


def refuse_lazy(model: nn.Module) -> None:
    """Raise if the model has parameters without a shape yet: they could not be compared."""
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ReplicaError(
            f"The model has parameters without a shape ({listed(lazy)}): run one batch through it, on every "
            "rank alike, before it is replicated."
        )


def refuse_unequal(model: nn.Module, world: World, *, values: bool = True) -> None:
    """Raise on all ranks alike, with names and ranks, unless all hold the same model.

    With `values=False` the numbers in parameters and buffers may differ.
    """
    text = json.dumps(_described(model, values))
    digest = blake2b(text.encode(), digest_size=16).hexdigest()
    if len(set(world.gather_texts(digest))) == 1:
        return
    descriptions = [json.loads(text) for text in world.gather_texts(text)]
    for rank, other in enumerate(descriptions):
        if difference := _difference(descriptions[0], other):
            raise ReplicaError(
                f"The model on rank {rank} is not the one on rank 0: {difference}. Build it from the same "
                "seed and in the same order on every rank (iterating over a Python set of texts is not); if "
                "only the values differ, world.replicate(model, from_rank=0) takes those of rank 0."
            )


def copy_from(rank: int, model: nn.Module, world: World) -> None:
    """Give every rank the values that the parameters and buffers have on `rank`."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            world.broadcast_(tensor.data, source=rank)


def value_digest(tensor: Tensor) -> str:
    """A short digest of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(flat.numpy().data, digest_size=8).hexdigest()


def _described(model: nn.Module, values: bool) -> list[dict[str, Any]]:
    parameters = [("parameter", name, p) for name, p in model.named_parameters()]
    buffers = [("buffer", name, b) for name, b in model.named_buffers()]
    return [
        {
            "kind": kind,
            "name": name,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype),
            "trainable": tensor.requires_grad,
            "value": value_digest(tensor) if values else "",
        }
        for kind, name, tensor in (*parameters, *buffers)
    ]


def _difference(reference: list[dict[str, Any]], other: list[dict[str, Any]]) -> str:
    """What tells two descriptions apart, in words; empty if nothing does."""
    ours = {(entry["kind"], entry["name"]): entry for entry in reference}
    theirs = {(entry["kind"], entry["name"]): entry for entry in other}
    if missing := [name for kind, name in ours if (kind, name) not in theirs]:
        return f"it lacks {listed(missing)}"
    if extra := [name for kind, name in theirs if (kind, name) not in ours]:
        return f"it has {listed(extra)} besides"
    for aspect in ("shape", "dtype", "trainable", "value"):
        if names := [key[1] for key in ours if ours[key][aspect] != theirs[key][aspect]]:
            first = next(key for key in ours if key[1] == names[0])
            if aspect == "value":
                return f"the values of {listed(names)} differ"
            here, there = theirs[first][aspect], ours[first][aspect]
            return f"{aspect} of {listed(names)} differs ({there} on rank 0, {here} here)"
    for position, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        if mine != its:
            return f"the order differs, at {mine[0]} {position}: {mine[1]} on rank 0, {its[1]} here"
    return ""
