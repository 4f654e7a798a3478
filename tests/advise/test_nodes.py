"""How many GPUs a node has: as said, as measured, as the machine has, or as is usual."""

from typing import Any

import pytest

from samestep.advise.advice import Question, advise
from samestep.advise.cells import Cell
from samestep.advise.context import NOTHING
from samestep.advise.nodes import USUAL, Node, node_of
from samestep.errors import ConfigError


def cell(gpus: int, **values: Any) -> Cell:
    return Cell(gpus=gpus, step_s=0.8 + 0.02 * gpus, **values)


@pytest.mark.parametrize(
    ("cells", "said", "expected"),
    [
        ([cell(1), cell(2)], None, Node(USUAL, is_told=False)),
        ([cell(1), cell(16)], None, Node(16, is_told=False)),
        ([cell(1), cell(2)], 4, Node(4, is_told=True)),
        ([cell(1, gpus_per_node=4), cell(2, gpus_per_node=4)], None, Node(4, is_told=True)),
        ([cell(1, gpus_per_node=4), cell(2, gpus_per_node=4)], 16, Node(16, is_told=True)),
        ([cell(2), cell(8, nodes=2)], None, Node(4, is_told=True)),
    ],
)
def test_who_says_it(cells: list[Cell], said: int | None, expected: Node) -> None:
    assert node_of(cells, said) == expected


def test_fewer_than_a_node_had_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"4 GPUs a node were given, but 8 GPUs were measured on 1 node:"):
        node_of([cell(1), cell(8)], 4)


def test_a_node_that_nobody_told_is_said_where_it_matters() -> None:
    def asked(**values: Any) -> tuple[list[str], dict[int, bool]]:
        advice = advise([cell(1), cell(2), cell(4)], NOTHING, Question(worlds=[1, 2, 4, 8, 16], **values))
        said = [remark for remark in advice.remarks if "--gpus-per-node" in remark]
        return said, {offer.gpus: offer.is_range for offer in advice.offers}

    said, is_range = asked()
    assert len(said) == 1 and not is_range[8] and is_range[16]
    # one node has all of them: nothing leaves it
    assert asked(gpus_per_node=16) == ([], {1: False, 2: False, 4: False, 8: False, 16: False})
    # half of the usual: what was within a node is not any more
    assert asked(gpus_per_node=4)[1][8]
