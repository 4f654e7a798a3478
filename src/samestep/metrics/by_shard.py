"""A metric kept apart by shard, so that its value has the same bits on any number of ranks.

Sums of a rank would depend on which shards the rank has; sums of a shard depend on nothing but its examples.
Knows who has which shard and which one is being worked on. Does not merge.
"""

from copy import deepcopy
from typing import Any

from torch import nn
from torchmetrics import Metric

from samestep.data.shard import cut
from samestep.metrics.parts import ungroup
from samestep.world import World


class ByShard:
    """Copies of a metric, one for each shard of this rank; in fast mode the metric itself is the only one.

    `update` goes to the copy of the shard that the loader last handed out; `world.compute` gives the value
    over all shards of all ranks. Networks inside the metric are shared by its copies. If not `is_apart`, it
    is what a plain metric is: one for all that its rank sees.
    """

    def __init__(self, metric: nn.Module, world: World, *, is_apart: bool = True) -> None:
        self._world = world
        self.num_shards = world.shards if is_apart else None
        """How many shards there are on any world; None where a rank is one, as in fast mode."""
        own = range(*cut(self.num_shards or world.size, world.size, world.rank))
        if self.num_shards is not None:
            ungroup(metric)
        self.copies = {shard: metric if shard == own[0] else _copy_of(metric) for shard in own}
        """By shard, in order."""

    def __repr__(self) -> str:
        return f"ByShard({self.first!r}, shards={[*self.copies]})"

    @property
    def first(self) -> nn.Module:
        """The metric itself, which is the copy of this rank's first shard and the one that computes."""
        return next(iter(self.copies.values()))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Take in what belongs to the shard under way; outside of a loader, to this rank's first."""
        share = self._world.share
        is_apart = self.num_shards is not None and share is not None
        copy = self.copies[share.shard] if is_apart else self.first  # type: ignore[union-attr]
        copy.update(*args, **kwargs)  # type: ignore[operator]

    def reset(self) -> None:
        """Forget all updates."""
        for copy in self.copies.values():
            copy.reset()  # type: ignore[operator]

    def home_of(self, shard: int) -> int:
        """The shard that goes on with what `shard` of another run accumulated; the first one in fast mode."""
        return 0 if self.num_shards is None else min(shard, self.num_shards - 1)


def by_shard(metric: nn.Module | ByShard, world: World) -> ByShard:
    """The copies of a metric; a plain metric takes in all that its rank sees."""
    return metric if isinstance(metric, ByShard) else ByShard(metric, world, is_apart=False)


def _copy_of(metric: nn.Module) -> nn.Module:
    # a function that makes metrics is called once only: it may load a network or draw random numbers, and how
    # often it does must not depend on the world
    networks = (module for module in metric.modules() if not isinstance(module, Metric))
    tensors = [
        tensor
        for network in networks
        for tensor in (*network.parameters(recurse=False), *network.buffers(recurse=False))
    ]
    return deepcopy(metric, {id(tensor): tensor for tensor in tensors})
