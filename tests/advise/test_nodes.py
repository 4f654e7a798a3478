"""How many GPUs a node has: as said, as measured, as the machine has, or as is usual."""

import math
from typing import Any

import pytest

from samestep.advise.advice import Question, advise
from samestep.advise.cells import Cell, checked
from samestep.advise.context import NOTHING
from samestep.advise.nodes import USUAL, Node, node_of
from samestep.advise.project import project
from samestep.advise.rows import ProjectedRow
from samestep.errors import ConfigError


def cell(gpus: int, **values: Any) -> Cell:
    return Cell(gpus=gpus, step_s=0.8 + 0.02 * gpus, **values)


@pytest.mark.parametrize(
    ("cells", "said", "expected"),
    [
        ([cell(1), cell(2)], None, Node(USUAL, is_told=False)),
        # 16 GPUs of which nobody said the nodes fill two of the usual size; a node that had 16 is larger
        ([cell(1), cell(16)], None, Node(USUAL, is_told=False)),
        ([cell(1), cell(16, nodes=1)], None, Node(16, is_told=True)),
        ([cell(1), cell(16)], 4, Node(4, is_told=True)),
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
        node_of([cell(1), cell(8, nodes=1)], 4)


@pytest.mark.parametrize(
    ("values", "said", "expected"),
    [
        ({}, None, [1, 1, 2, 2]),
        ({}, 4, [1, 2, 3, 4]),
        ({"gpus_per_node": 4}, None, [1, 2, 3, 4]),
        ({"nodes": 1}, None, [1, 1, 1, 1]),
    ],
)
def test_cells_that_do_not_say_their_nodes_fill_them(
    values: dict[str, Any], said: int | None, expected: list[int]
) -> None:
    cells = [cell(gpus, **values) for gpus in (1, 8, 12, 16)]
    assert [each.nodes for each in checked(cells, node_of(cells, said))] == expected
    rows = project(cells, 16, gpus_per_node=said)
    assert [row.nodes for row in rows if row.gpus in (1, 8, 12, 16)] == expected


def test_a_table_without_nodes_is_projected_as_if_they_were_there() -> None:
    """NVIDIA/DeepLearningExamples has such tables: 1 to 16 GPUs, nodes of 8 by the machine's name."""
    times = {1: 0.100, 2: 0.104, 4: 0.108, 8: 0.112, 16: 0.135}
    plain = [{"gpus": gpus, "batch_per_gpu": 32, "step_s": step_s} for gpus, step_s in times.items()]
    told = [each | {"nodes": -(-each["gpus"] // 8)} for each in plain]
    # the control: on one node of 16, nothing was measured between nodes
    as_one = [each | {"nodes": 1} for each in plain]
    ours, same, other = (project(cells, [32])[-1] for cells in (plain, told, as_one))
    assert isinstance(ours, ProjectedRow) and isinstance(other, ProjectedRow)
    assert ours == same and not ours.is_range
    assert other.is_range
    # on the scale on which intervals are made
    assert math.log(other.high_s / other.low_s) > 3 * math.log(ours.high_s / ours.low_s)


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
