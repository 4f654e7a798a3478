"""Mean and variance over the global batch, as differentiable operations.

This is the protocol for norm layers written by hand: compute statistics with `moments` (or from sums, with
`sum_over_ranks`) and set the class attribute `samestep_synchronised = True`. The gradients are those of
the sum of all ranks' losses, so that parameter gradients, summed over ranks afterwards, are the ones that
a single rank with the whole batch would have found.

A rank without examples works on a stand-in batch: it takes part in every exchange, counts as nothing, and
gets gradients of zero. Nothing that its stand-in computes, NaN included, reaches another rank. Knows
nothing of layers, running averages or how the batch was shared out.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samestep.errors import ConfigError
from samestep.nn.tracing import apply, first_order, untraced
from samestep.world import current

__all__ = ["Moments", "merge", "moments", "statistics_dtype", "sum_over_ranks"]


Moments = tuple[Tensor, Tensor, Tensor]
"""Mean, biased variance, and the number of values behind each (float64, without dimensions)."""


def moments(x: Tensor, dims: int | Sequence[int]) -> Moments:
    """The moments of `x` over `dims` and over all ranks, each value counting once.

    `dims` must include those in which ranks differ (the batch); the other dimensions are the same on all
    ranks. Half-precision input has float32 statistics. Every rank gets the same bits. For training only: in
    evaluation a rank may have no batch at all, and would not come to the exchange.
    """
    world = current()
    if world is not None and world.share is not None and not world.share.train:
        raise ConfigError(
            "samestep.nn.moments was called in an evaluation, where ranks do not meet; take the running "
            "statistics there (`if self.training: … else: …`)."
        )
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    mean, var, count = apply(_Moments, x, tuple(dim % x.dim() for dim in dims))
    return mean, var, count


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of the ranks' tensors; its gradient is the sum of the ranks' gradients."""
    total: Tensor = apply(_Sum, tensor)
    return total


def statistics_dtype(x: Tensor) -> torch.dtype:
    """The dtype of statistics of `x`: never below float32."""
    return torch.promote_types(x.dtype, torch.float32)


@untraced
def merge(count: int, mean: Tensor, var: Tensor) -> Moments:
    """The moments of all ranks together, from this rank's; no gradient.

    With n = Σ nᵣ:  mean = Σ nᵣ meanᵣ / n  and  var = Σ nᵣ (varᵣ + (meanᵣ − mean)²) / n.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    (1979), for all ranks at once. One exchange, in float64: counts stay exact beyond 2²⁴ and the merge
    adds no rounding of its own to float32 statistics. Ranks are added in the order of their numbers.
    """
    size = torch.full((1,), count, dtype=torch.float64, device=mean.device)
    local = torch.cat([size, mean.reshape(-1).double(), var.reshape(-1).double()])
    if count == 0:
        local = torch.zeros_like(local)
    world = current()
    is_shared = world is not None and world.shares_statistics
    table = torch.stack(world.gather(local) if is_shared else [local])  # type: ignore[union-attr]
    counts, means, variances = table[:, :1], *table[:, 1:].chunk(2, dim=1)
    total = counts.sum()
    parts = counts / total
    merged_mean = (parts * means).sum(0)
    merged_var = (parts * (variances + (means - merged_mean).square())).sum(0)
    return merged_mean.to(mean).view_as(mean), merged_var.to(var).view_as(var), total


class _Moments(torch.autograd.Function):
    """∂/∂xᵢ = (g_mean + 2 (xᵢ − mean) g_var) / n, with g the gradients summed over ranks."""

    @staticmethod
    @untraced
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        count = 0 if _is_idle() else math.prod(x.shape[dim] for dim in dims)
        values = x.to(statistics_dtype(x))
        if count:
            var, mean = torch.var_mean(values, dims, correction=0)
        else:
            kept = [n for dim, n in enumerate(x.shape) if dim not in dims]
            mean, var = values.new_zeros(kept), values.new_zeros(kept)
        mean, var, total = merge(count, mean, var)
        ctx.save_for_backward(x, mean, total)
        ctx.dims, ctx.count = dims, count
        ctx.mark_non_differentiable(total)
        return mean, var, total

    @staticmethod
    @first_order
    @untraced
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        x, mean, total = ctx.saved_tensors
        grads = torch.stack(grad_outputs[:2])
        if not ctx.count:
            grads = torch.zeros_like(grads)
        _sum(grads)
        if not ctx.count:
            return torch.zeros_like(x), None
        shape = [1 if dim in ctx.dims else n for dim, n in enumerate(x.shape)]
        grad_mean, grad_var = (grads / total).view(2, *shape)
        return ((x - mean.view(shape)) * (2 * grad_var) + grad_mean).to(x.dtype), None


class _Sum(torch.autograd.Function):
    @staticmethod
    @untraced
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.idle = _is_idle()
        return _sum(torch.zeros_like(tensor) if ctx.idle else tensor.clone())

    @staticmethod
    @first_order
    @untraced
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (grad,) = grad_outputs
        total = _sum(torch.zeros_like(grad) if ctx.idle else grad.clone())
        return torch.zeros_like(total) if ctx.idle else total


def _sum(tensor: Tensor) -> Tensor:
    world = current()
    if world is not None and world.shares_statistics:
        world.sum_(tensor).wait()
    return tensor


def _is_idle() -> bool:
    world = current()
    return world is not None and world.shares_statistics and world.is_idle
