"""Nodes: how many GPUs a node has, which decides from where on links between nodes count."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.advise.cells import Cell
from samestep.errors import ConfigError

USUAL = 8


@dataclass(frozen=True)
class Node:
    """A node of the machine that is projected to."""

    gpus: int
    is_told: bool
    """Else it is what is usual."""

    def num_for(self, gpus: int) -> int:
        return -(-gpus // self.gpus)


def node_of(cells: Sequence[Cell], said: int | None = None) -> Node:
    """As somebody says it; the most that a node had, if there were several; as the machine has; the usual."""
    most = max(cells, key=lambda cell: -(-cell.gpus // cell.nodes))
    most_a_node = -(-most.gpus // most.nodes)
    if said is not None:
        if said < most_a_node:
            raise ConfigError(
                f"{said} GPUs a node were given, but {most.gpus} GPUs were measured on {most.nodes} "
                f"node{'s' * (most.nodes > 1)}: give {most_a_node} or more, or mend the column nodes"
            )
        return Node(said, is_told=True)
    if max(cell.nodes for cell in cells) > 1:
        return Node(most_a_node, is_told=True)
    has = max(cell.gpus_per_node or 0 for cell in cells)
    return Node(max(most_a_node, has or USUAL), is_told=has > 0)
