"""Summaries: tensors and settings in a few numbers or texts, without changing or moving any."""

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from samestep.observations import mixed, sample_positions
from samestep.observed import Summary

MOST_TENSORS = 16
MOST_EXAMPLES = 4096
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 2**16
_CHUNKS_AT_ONCE = 64


def tensors_in(value: Any) -> list[Tensor]:
    """The first few tensors in any nesting of containers that torch knows."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)][:MOST_TENSORS]


def summary(tensor: Tensor, name: str | None = None) -> Summary:
    """The summary of a tensor; with a sample if it is given a name."""
    dense = _dense(tensor)
    count = dense.numel()
    values = torch.view_as_real(dense) if dense.is_complex() else dense
    numbers = [0.0, 0.0, 0.0]
    if count:
        flat = values.reshape(-1)
        parts = [
            flat.sum(dtype=torch.float64),
            torch.linalg.vector_norm(_real(flat), dtype=torch.float64),
            _real(flat).abs().max().double(),
        ]
        positions = sample_positions(name, flat.numel()) if name is not None else []
        sample = flat[torch.tensor(positions, dtype=torch.int64, device=flat.device)].double()
        numbers = torch.cat([torch.stack(parts), sample]).tolist()
    return Summary(
        print=bits_print(dense),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        mean=numbers[0] / max(count, 1),
        rms=numbers[1] / max(count, 1) ** 0.5,
        max_abs=numbers[2],
        sample=tuple(numbers[3:]),
    )


def bits_print(tensor: Tensor) -> str:
    """A digest of dtype, shape and bits; equal on every kind of device.

    Bits are summed as whole numbers modulo 2 ** 64, by chunks, each element times an odd number of its own:
    exact in any order, and no change of a single element goes unseen. Only the sums leave the device.
    """
    digest = blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest_size=8)
    flat = flat_bits(tensor)
    factors = _factors(flat.device)
    sums = []
    for block in flat.split(_CHUNK * _CHUNKS_AT_ONCE):
        rest = block.numel() % _CHUNK
        whole, tail = block[: block.numel() - rest], block[block.numel() - rest :]
        if whole.numel():
            sums.append((whole.view(-1, _CHUNK) * factors).sum(1))
        if rest:
            sums.append((tail * factors[:rest]).sum().reshape(1))
    if sums:
        digest.update(torch.cat(sums).cpu().numpy().tobytes())
    return digest.hexdigest()


def flat_bits(tensor: Tensor) -> Tensor:
    """The bits of a tensor as whole numbers, in a row."""
    return _whole(_dense(tensor)).reshape(-1)


def example_prints(tensors: Iterable[Tensor], num_examples: int | None) -> tuple[str, ...]:
    """A print for each row of the largest tensor that has one row an example; none if there is no such."""
    fitting = [t for t in tensors if t.ndim and t.shape[0] == num_examples and t.numel()]
    if not fitting or num_examples is None:
        return ()
    largest = max(fitting, key=Tensor.numel)[:MOST_EXAMPLES]
    rows = _whole(_dense(largest)).reshape(len(largest), -1)
    factors = _factors(rows.device)
    sums = [
        (part * factors[: part.shape[1]]).sum(1) * (2 * i + 1) for i, part in enumerate(rows.split(_CHUNK, 1))
    ]
    return tuple(f"{number % 2**64:016x}" for number in torch.stack(sums).sum(0).tolist())


def row_prints(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """A print for each row of the largest tensor."""
    largest = max((tensor for tensor in tensors if tensor.ndim), key=Tensor.numel, default=None)
    return () if largest is None else example_prints([largest], len(largest))


def settings_of(owner: Any, most: int = 32) -> dict[str, str]:
    """The attributes of an object, or items of a mapping, that are numbers, truths or short texts."""
    items = owner if isinstance(owner, Mapping) else getattr(owner, "__dict__", {})
    plain = {
        str(key): str(value)[:80]
        for key, value in items.items()
        if isinstance(value, bool | int | float | str) and not str(key).startswith("_")
    }
    return dict(list(plain.items())[:most])


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _real(flat: Tensor) -> Tensor:
    return flat if flat.is_floating_point() else flat.double()


def _whole(dense: Tensor) -> Tensor:
    dense = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return dense.resolve_neg().contiguous().view(_WHOLE[dense.element_size()])


@cache
def _factors(device: torch.device) -> Tensor:
    odd = mixed(np.arange(_CHUNK)) | np.uint64(1)
    return torch.from_numpy(odd.view(np.int64)).to(device)
