"""The tree of shards: the same additions whoever makes them."""

import math

from hypothesis import given
from hypothesis import strategies as st

from samestep.data.shard import cut
from samestep.train.tree import Node, TreeSum, nodes_of


def joined(a: str, b: str) -> str:
    return f"({a}+{b})"


def reference(values: list[str], size: int) -> str:
    """The sum of the first `len(values)` leaves of a node of `size`, by the definition of the tree."""
    if size == 1:
        return values[0]
    left, right = values[: size // 2], values[size // 2 :]
    return (
        joined(reference(left, size // 2), reference(right, size // 2))
        if right
        else reference(left, size // 2)
    )


def over_ranks(shards: int, world_size: int) -> str:
    whole: TreeSum[str] = TreeSum(joined)
    for rank in range(world_size):
        start, stop = cut(shards, world_size, rank)
        own: TreeSum[str] = TreeSum(joined, start)
        for shard in range(start, stop):
            own.push(Node(shard, 1), str(shard))
        assert [node for node, _ in own.sums] == list(nodes_of(start, stop))
        for node, value in own.sums:
            whole.push(node, value)
    return whole.total()


@given(shards=st.integers(1, 70), data=st.data())
def test_every_world_adds_up_alike(shards: int, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, shards))
    size = 1 << math.ceil(math.log2(shards))
    assert over_ranks(shards, world_size) == reference([str(s) for s in range(shards)], size)


def test_adding_rank_by_rank_would_depend_on_the_world() -> None:
    def rank_by_rank(world_size: int) -> str:
        sums = []
        for rank in range(world_size):
            start, stop = cut(8, world_size, rank)
            value = str(start)
            for shard in range(start + 1, stop):
                value = joined(value, str(shard))
            sums.append(value)
        total = sums[0]
        for value in sums[1:]:
            total = joined(total, value)
        return total

    assert rank_by_rank(2) != rank_by_rank(1)
    assert over_ranks(8, 2) == over_ranks(8, 1) == over_ranks(8, 3)


def most_held(start: int, stop: int) -> int:
    """How many sums are held beside the one that is being made."""
    tree: TreeSum[str] = TreeSum(joined, start)
    most = 0
    for shard in range(start, stop):
        most = max(most, len(tree.sums))
        tree.push(Node(shard, 1), str(shard))
    return most


def test_few_sums_are_held_at_once() -> None:
    ranges = [(s, cut(s, n, r)) for s in range(1, 65) for n in range(1, s + 1) for r in range(n)]
    excess = {s: [] for s in range(1, 65)}
    for shards, (start, stop) in ranges:
        excess[shards].append(most_held(start, stop) - (math.log2(stop - start) + 1))
    assert all(max(excess[shards]) <= 0 for shards in range(1, 25))
    # a long range that starts at an odd place is made up of more nodes, and all of them have to be sent
    assert 0 < max(max(excess[shards]) for shards in range(25, 65)) < 2


def test_shards_without_examples_are_filled_in() -> None:
    tree: TreeSum[str] = TreeSum(joined)
    tree.push(Node(0, 1), "a")
    tree.fill(3, lambda: "-")
    tree.push(Node(3, 1), "b")
    assert tree.total() == "((a+-)+(-+b))"
