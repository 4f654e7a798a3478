"""The fixed binary tree in which shards are added up: the reason why a sum has the same bits on any world.

A node covers the shards from `start` to `start + size`, with `size` a power of two and `start` a multiple of
it. Its sum is that of its left half plus that of its right half. A half that lies wholly beyond the last
shard is left out. Knows numbers of shards, and nothing of what is added.
"""

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Node(NamedTuple):
    """The shards from `start` to `start + size`, which are added up by themselves."""

    start: int
    size: int

    def is_left_of(self, other: "Node") -> bool:
        """Whether the two are the halves of one node, in this order."""
        return (
            self.size == other.size
            and self.start + self.size == other.start
            and self.start % (2 * self.size) == 0
        )


def nodes_of(start: int, stop: int) -> Iterator[Node]:
    """The largest nodes that make up the shards from `start` to `stop`, in order.

    There are at most two of each size, so that a range of n shards has at most 2·log2(n) + 1 of them.
    """
    while start < stop:
        size = 1
        while start % (2 * size) == 0 and start + 2 * size <= stop:
            size *= 2
        yield Node(start, size)
        start += size


class TreeSum(Generic[T]):
    """Adds up neighbours as soon as both are there; nodes come from left to right, without gaps.

    Between two calls it holds one value for each of the nodes of `nodes_of` the shards so far: at most
    log2(n) + 1 after n shards from a start that is a multiple of n.
    """

    def __init__(self, add: Callable[[T, T], T], start: int = 0) -> None:
        self.stop = start
        """Where the nodes so far end."""
        self._add = add
        self._sums: list[tuple[Node, T]] = []

    def push(self, node: Node, value: T) -> None:
        """Take in the sum of the next node."""
        assert node.start == self.stop, "nodes come without gaps"
        self.stop = node.start + node.size
        while self._sums and self._sums[-1][0].is_left_of(node):
            left, left_value = self._sums.pop()
            value = self._add(left_value, value)
            node = Node(left.start, 2 * left.size)
        self._sums.append((node, value))

    def fill(self, stop: int, make: Callable[[], T]) -> None:
        """Take in, for every shard up to `stop`, what `make` makes for one without examples."""
        while self.stop < stop:
            self.push(Node(self.stop, 1), make())

    @property
    def sums(self) -> list[tuple[Node, T]]:
        """The nodes so far with their sums, from left to right."""
        return self._sums

    def total(self) -> T:
        """The sum of all; the missing right halves of nodes lie beyond the last shard."""
        (_, value), *others = reversed(self._sums)
        for _, left_value in others:
            value = self._add(left_value, value)
        return value
