"""Prints of many tensors at once: a few operations and one transfer for all, on any kind of device."""

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from samestep.observations import mixed
from samestep.probe.summaries import flat_bits

_CHUNK = 2**16
_AT_ONCE = 2**22
"""Elements that are looked at together: bounds the memory that a look needs."""


def tensor_sums(tensors: Sequence[Tensor]) -> list[int]:
    """A number below 2 ** 64 for each tensor, of its bits alone; no change of a single element goes unseen.

    Elements are summed as whole numbers modulo 2 ** 64, each times an odd number of its own: exact in any
    order, and so equal on all devices. Those of small tensors stand in one row, and each one's sum is the
    difference of two running sums.
    """
    sums: dict[int, Tensor] = {}
    small: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for i, tensor in enumerate(tensors):
        bits = flat_bits(tensor)
        if bits.numel() <= _CHUNK:
            small.setdefault((bits.device, bits.dtype), []).append((i, bits))
        else:
            sums[i] = _large(bits)
    for many in small.values():
        for some in _cut(many):
            ends = torch.tensor([len(bits) for _, bits in some]).cumsum(0)
            row = torch.cat([bits for _, bits in some])
            running = (row * _factors(row.device).repeat(-(-len(row) // _CHUNK))[: len(row)]).cumsum(0)
            running = torch.cat([running.new_zeros(1), running])
            at_ends = running[torch.cat([ends.new_zeros(1), ends]).to(running.device)]
            sums |= zip((i for i, _ in some), at_ends.diff(), strict=True)
    if not sums:
        return []
    by_device: dict[torch.device, list[int]] = {}
    for i, number in sums.items():
        by_device.setdefault(number.device, []).append(i)
    found = [0] * len(tensors)
    for indices in by_device.values():
        for i, number in zip(indices, torch.stack([sums[i] for i in indices]).tolist(), strict=True):
            found[i] = number % 2**64
    return found


def _large(bits: Tensor) -> Tensor:
    factors = _factors(bits.device)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for number, block in enumerate(bits.split(_AT_ONCE)):
        rest = block.numel() % _CHUNK
        whole, tail = block[: block.numel() - rest], block[block.numel() - rest :]
        chunks = (whole.view(-1, _CHUNK) * factors).sum(1)
        if rest:
            chunks = torch.cat([chunks, (tail * factors[:rest]).sum().reshape(1)])
        total += (chunks * factors[: len(chunks)]).sum() * (2 * number + 1)
    return total


def _cut(many: Iterable[tuple[int, Tensor]]) -> list[list[tuple[int, Tensor]]]:
    """The same in pieces of no more than `_AT_ONCE` elements."""
    pieces: list[list[tuple[int, Tensor]]] = []
    num_elements = _AT_ONCE
    for i, bits in many:
        if num_elements + len(bits) > _AT_ONCE:
            pieces.append([])
            num_elements = 0
        pieces[-1].append((i, bits))
        num_elements += len(bits)
    return pieces


@cache
def _factors(device: torch.device) -> Tensor:
    odd = mixed(np.arange(_CHUNK)) | np.uint64(1)
    return torch.from_numpy(odd.view(np.int64)).to(device)
