"""Batch normalisation over the global batch, for torch's own layers and their subclasses.

Forward: local statistics, one exchange, then torch's inference kernel with the global statistics.
Backward: local sums, one exchange, then elementwise. Gradients of weight and bias stay this rank's part,
because gradients of all parameters are summed over ranks after backward. Running statistics are the same
bits on all ranks. On one rank, in evaluation and without a world this is torch's layer, kernel and all;
a layer that uses batch statistics in evaluation (`track_running_stats=False`) uses its own batch's there.
Knows nothing of how layers are found.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from samestep.device import is_on_host
from samestep.errors import ConfigError
from samestep.nn.adopt import adopt
from samestep.nn.moments import merge, statistics_dtype
from samestep.nn.tracing import apply, first_order, untraced
from samestep.world import World, current

__all__ = ["synchronise_batch_norm"]

_LOCAL_SUMS = [False, True, True]


class SynchronisedBatchNorm(_BatchNorm):
    """Batch norm over all ranks; `samestep_exchanges` counts the forward passes that were synchronised."""

    samestep_synchronised = True
    samestep_exchanges = 0

    def forward(self, input: Tensor) -> Tensor:
        world = current()
        if world is None or not world.shares_statistics or not self.training:
            if self.training and world is not None and world.shards is not None:
                _check_shard(input, world.shards)
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        return _normalise(self, world, input)


class SynchronisedBatchNorm1d(SynchronisedBatchNorm, nn.BatchNorm1d):
    pass


class SynchronisedBatchNorm2d(SynchronisedBatchNorm, nn.BatchNorm2d):
    pass


class SynchronisedBatchNorm3d(SynchronisedBatchNorm, nn.BatchNorm3d):
    pass


class SynchronisedLazyBatchNorm1d(SynchronisedBatchNorm, nn.LazyBatchNorm1d):
    cls_to_become = SynchronisedBatchNorm1d


class SynchronisedLazyBatchNorm2d(SynchronisedBatchNorm, nn.LazyBatchNorm2d):
    cls_to_become = SynchronisedBatchNorm2d


class SynchronisedLazyBatchNorm3d(SynchronisedBatchNorm, nn.LazyBatchNorm3d):
    cls_to_become = SynchronisedBatchNorm3d


class SynchronisedBatchNormNd(SynchronisedBatchNorm):
    """What torch's SyncBatchNorm becomes, which takes any number of dimensions.

    It is no longer an instance of SyncBatchNorm: DistributedDataParallel refuses those on CPU.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")


class _SynchronisedSyncBatchNorm(SynchronisedBatchNorm, nn.SyncBatchNorm):
    """Only for subclasses of torch's SyncBatchNorm, whose `super()` must still find it."""


_REPLACEMENTS: dict[type, type] = {
    nn.BatchNorm1d: SynchronisedBatchNorm1d,
    nn.BatchNorm2d: SynchronisedBatchNorm2d,
    nn.BatchNorm3d: SynchronisedBatchNorm3d,
    nn.LazyBatchNorm1d: SynchronisedLazyBatchNorm1d,
    nn.LazyBatchNorm2d: SynchronisedLazyBatchNorm2d,
    nn.LazyBatchNorm3d: SynchronisedLazyBatchNorm3d,
    nn.SyncBatchNorm: _SynchronisedSyncBatchNorm,
    _BatchNorm: SynchronisedBatchNorm,
}


def synchronise_batch_norm(module: nn.Module) -> None:
    """Make a batch norm layer of torch, or of a subclass, work over all ranks; in place."""
    is_plain = type(module) is nn.SyncBatchNorm
    adopt(module, {nn.SyncBatchNorm: SynchronisedBatchNormNd} if is_plain else _REPLACEMENTS)


def _check_shard(x: Tensor, shards: int) -> None:
    if x.dim() > 1 and x.numel() == x.shape[1]:
        raise ConfigError(
            "A shard of a batch has 1 example, of which batch norm has no statistics: in bitwise mode norms "
            f"see their shard, and a batch is cut into {shards}. Give batches of {2 * shards} or more, "
            "also the last of an epoch, or fewer shards."
        )


@untraced
def _normalise(layer: SynchronisedBatchNorm, world: World, x: Tensor) -> Tensor:
    channels = x.shape[1]
    count = 0 if world.is_idle else x.numel() // channels
    mean, var, total = merge(count, *_local_moments(x, count))
    if count <= 1 and float(total) <= 1:  # a rank with more values of its own need not wait for the total
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {x.shape} on rank "
            f"{world.rank} and {int(total)} over all {world.size} ranks"
        )
    layer.samestep_exchanges += 1
    with torch.no_grad():
        _track(layer, mean, var * (total / (total - 1)))
    output: Tensor = apply(_GlobalBatchNorm, x, layer.weight, layer.bias, mean, var, total, layer.eps, count)
    return output


def _local_moments(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    mean = torch.zeros(x.shape[1], dtype=statistics_dtype(x), device=x.device)
    if count == 0:
        return mean, mean
    if is_on_host(x) and x.dtype == torch.float32 and x.dim() > 2 and x.is_contiguous():
        return _moments_of_planes(x.detach().flatten(2), count)
    # the kernel behind batch norm's own training forward; it also wants running statistics, to learn
    # from their dtype that half-precision input has float32 statistics
    mean, var = torch.batch_norm_update_stats(x.detach(), mean, torch.zeros_like(mean), 0.0)
    return mean, var


def _moments_of_planes(planes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """In two passes, as exact as the kernel, which takes six times as long for this layout on a CPU."""
    mean = planes.sum(2).double().sum(0).div_(count).float()
    deviations = torch.linalg.vector_norm(planes - mean[:, None], dim=2)
    return mean, deviations.double().square_().sum(0).div_(count).float()


def _track(layer: SynchronisedBatchNorm, mean: Tensor, unbiased_var: Tensor) -> None:
    if not layer.track_running_stats or layer.running_mean is None or layer.running_var is None:
        return
    factor = layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if factor is None:
            factor = 1.0 / float(layer.num_batches_tracked)
    factor = 0.0 if factor is None else factor
    layer.running_mean.mul_(1 - factor).add_(mean.to(layer.running_mean.dtype), alpha=factor)
    layer.running_var.mul_(1 - factor).add_(unbiased_var.to(layer.running_var.dtype), alpha=factor)


class _GlobalBatchNorm(torch.autograd.Function):
    """y = w·x̂ + b with x̂ = (x − mean)/√(var + eps), where mean and var depend on the x of all ranks.

    With n values in all, S₁ = Σ dy and S₂ = Σ dy·x̂ over all ranks:
    dx = w/√(var + eps) · (dy − S₁/n − x̂·S₂/n);  dw and db are this rank's part of S₂ and S₁.
    Ioffe and Szegedy, "Batch normalization" (2015), section 3.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        total: Tensor,
        eps: float,
        count: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var, total)
        ctx.eps, ctx.count = eps, count
        return _affine(x, weight, bias, mean, var, eps)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        x, weight, mean, var, total = ctx.saved_tensors
        wide = None if weight is None else weight.to(mean.dtype)
        if ctx.count:
            _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
                grad, x, wide, mean, var, None, None, False, ctx.eps, _LOCAL_SUMS
            )
        else:  # its gradients are zero, but zero times the NaN of a stand-in batch is not
            grad_weight, grad_bias = torch.zeros_like(mean), torch.zeros_like(mean)
        grad_x = None
        if ctx.needs_input_grad[0]:
            sums = torch.stack([grad_weight, grad_bias])
            world = current()
            assert world is not None
            world.sum_(sums).wait()
            scale = (var + ctx.eps).rsqrt()
            scale = scale if wide is None else scale * wide
            if ctx.count:
                to_xhat, to_all = -scale * sums / total
                grad_x = _affine(x, to_xhat, to_all, mean, var, ctx.eps)
                grad_x.addcmul_(grad, scale.to(grad.dtype).view(1, -1, *[1] * (x.dim() - 2)))
            else:
                grad_x = torch.zeros_like(x)
        if weight is None:
            return grad_x, None, None, None, None, None, None, None
        grads = grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)
        return grad_x, *grads, None, None, None, None, None


def _affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """weight·x̂ + bias by torch's inference kernel, which keeps the dtype and memory format of `x`."""
    weight = None if weight is None else weight.to(mean.dtype)
    bias = None if bias is None else bias.to(mean.dtype)
    output: Tensor = torch.ops.aten.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
    return output
