"""Norms that are local: layers that take statistics over all ranks take them over their own rank's batch."""

import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from samestep.probe.arrival import Arrival
from samestep.probe.replacing import Replacements


class NormsLocal:
    """Torch's SyncBatchNorm is a batch norm like others, and so are the synchronised norms of Samestep.

    A layer of others that takes statistics by collectives of its own stays as it is.
    """

    def __init__(self) -> None:
        self._replaced = Replacements()
        self._arrival = Arrival("samestep.world", self._world_arrived)

    def install(self) -> None:
        self._replaced.wrap(nn.SyncBatchNorm, "forward", _without_others)
        self._arrival.install()

    def uninstall(self) -> None:
        self._arrival.uninstall()
        self._replaced.undo()

    def _world_arrived(self) -> None:
        world = sys.modules["samestep.world"].World
        self._replaced.put(world, "shares_statistics", property(lambda world: False))


def _without_others(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
        return _BatchNorm.forward(layer, *args, **kwargs)

    return forward
