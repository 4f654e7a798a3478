"""Nodes: how many GPUs a node has, which decides from where on links between nodes count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samestep.errors import ConfigError

if TYPE_CHECKING:
    from samestep.advise.cells import Cell

USUAL = 8


@dataclass(frozen=True)
class Node:
    """A node of the machine that cells are of and that is projected to."""

    gpus: int
    is_told: bool
    """Else it is what is usual."""

    def num_for(self, gpus: int) -> int:
        return -(-gpus // self.gpus)


def node_of(cells: Sequence["Cell"], said: int | None = None) -> Node:
    """As somebody says it; the most that a node had, if there were several, or has by the cells; the usual.

    Only cells that say their nodes tell how many GPUs one had: the others fill nodes of this size.
    """
    told = [(-(-cell.gpus // cell.nodes), cell) for cell in cells if cell.nodes is not None]
    most, of = max(told, key=lambda each: each[0], default=(0, None))
    if said is not None:
        if not 1 <= said < math.inf or said != int(said):
            raise ConfigError(f"{said} GPUs a node were given, but a node has a whole number, 1 or more")
        if of is not None and said < most:
            raise ConfigError(
                f"{said} GPUs a node were given, but {of.gpus} GPUs were measured on {of.num_nodes} "
                f"node{'s' * (of.num_nodes > 1)}: give {most} or more, or mend the column nodes"
            )
        return Node(int(said), is_told=True)
    has = max((cell.gpus_per_node or 0 for cell in cells), default=0)
    is_known = has > 0 or any(cell.num_nodes > 1 for cell in cells)
    if is_known:
        return Node(max(most, has), is_told=True)
    return Node(max(most, USUAL), is_told=most > USUAL)
