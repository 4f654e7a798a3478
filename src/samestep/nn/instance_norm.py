"""Running statistics of instance norm over the global batch.

Instance norm normalises each example by itself, so its output never depends on the ranks; only the running
statistics do, and only when it tracks them. They are an average over the examples of the batch, so the
ranks' own updates, weighted by their numbers of examples, average to the global one.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from samestep.nn.adopt import adopt
from samestep.nn.tracing import untraced
from samestep.world import World, current

__all__ = ["synchronise_instance_norm"]


class SynchronisedInstanceNorm(_InstanceNorm):
    """Instance norm whose running statistics cover all ranks."""

    samestep_synchronised = True
    samestep_exchanges = 0

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        world = current()
        if world is not None and world.shares_statistics and self.training and self.running_mean is not None:
            _average(self, world, input)
        return output


class SynchronisedInstanceNorm1d(SynchronisedInstanceNorm, nn.InstanceNorm1d):
    pass


class SynchronisedInstanceNorm2d(SynchronisedInstanceNorm, nn.InstanceNorm2d):
    pass


class SynchronisedInstanceNorm3d(SynchronisedInstanceNorm, nn.InstanceNorm3d):
    pass


class SynchronisedLazyInstanceNorm1d(SynchronisedInstanceNorm, nn.LazyInstanceNorm1d):
    cls_to_become = SynchronisedInstanceNorm1d


class SynchronisedLazyInstanceNorm2d(SynchronisedInstanceNorm, nn.LazyInstanceNorm2d):
    cls_to_become = SynchronisedInstanceNorm2d


class SynchronisedLazyInstanceNorm3d(SynchronisedInstanceNorm, nn.LazyInstanceNorm3d):
    cls_to_become = SynchronisedInstanceNorm3d


_REPLACEMENTS: dict[type, type] = {
    nn.InstanceNorm1d: SynchronisedInstanceNorm1d,
    nn.InstanceNorm2d: SynchronisedInstanceNorm2d,
    nn.InstanceNorm3d: SynchronisedInstanceNorm3d,
    nn.LazyInstanceNorm1d: SynchronisedLazyInstanceNorm1d,
    nn.LazyInstanceNorm2d: SynchronisedLazyInstanceNorm2d,
    nn.LazyInstanceNorm3d: SynchronisedLazyInstanceNorm3d,
    _InstanceNorm: SynchronisedInstanceNorm,
}


def synchronise_instance_norm(module: nn.Module) -> None:
    """Make an instance norm layer keep running statistics of all ranks; in place.

    One that tracks none is left alone: it has nothing to synchronise.
    """
    if getattr(module, "track_running_stats", False):
        adopt(module, _REPLACEMENTS)


@untraced
@torch.no_grad()
def _average(layer: SynchronisedInstanceNorm, world: World, x: Tensor) -> None:
    mean, var = layer.running_mean, layer.running_var
    assert mean is not None
    assert var is not None
    no_batch_dim: int = layer._get_no_batch_dim()  # type: ignore[no-untyped-call]
    count = 0 if world.is_idle else 1 if x.dim() == no_batch_dim else x.shape[0]
    size = torch.full((1,), count, dtype=torch.float64, device=x.device)
    local = torch.cat([size, mean.double() * count, var.double() * count])
    if count == 0:
        local = torch.zeros_like(local)
    total = torch.stack(world.gather(local)).sum(0)
    merged = total[1:] / total[0]
    mean.copy_(merged[: mean.numel()])
    var.copy_(merged[mean.numel() :])
    layer.samestep_exchanges += 1
