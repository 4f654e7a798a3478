"""Sharing out a global batch by hand, for tests of layers."""

import torch
from torch import Tensor

from samestep.world import Share, World


def take(world: World, counts: list[int], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Set the world's share to `counts[rank]` examples and cut this rank's rows out of each tensor.

    A rank without examples gets one stand-in row of NaN, the worst that could leak out of it.
    """
    first, count = sum(counts[: world.rank]), counts[world.rank]
    world.share = Share(first=first, count=count, total=sum(counts), turn=0, turns=1, epoch=0, position=0)
    if count == 0:
        return tuple(torch.full_like(t[:1], torch.nan) for t in tensors)
    return tuple(t[first : first + count].clone() for t in tensors)


def generated(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers that every rank finds alike: far from centred, and different from example to example."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    drift = torch.arange(shape[0], dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))
    return (values + 0.5 * drift + 1).to(dtype)
