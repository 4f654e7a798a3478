"""The cutting of a batch: every example in one share, world-free turns, rank 0 first."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from samestep.data.shard import cut, shares


@given(total=st.integers(0, 500), parts=st.integers(1, 40))
def test_pieces_are_contiguous_and_even(total: int, parts: int) -> None:
    pieces = [cut(total, parts, part) for part in range(parts)]
    assert pieces[0][0] == 0
    assert pieces[-1][1] == total
    assert all(before[1] == after[0] for before, after in pairwise(pieces))
    sizes = [stop - start for start, stop in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(
    total=st.integers(1, 200), size=st.integers(1, 9), turns=st.integers(1, 7), position=st.integers(0, 10**6)
)
def test_each_example_is_in_one_share(total: int, size: int, turns: int, position: int) -> None:
    seen = []
    for rank in range(size):
        for share in shares(total, rank=rank, world_size=size, turns=turns, epoch=3, position=position):
            start = share.position + share.first
            seen += range(start, start + share.count)
            assert share.turns <= turns
            assert share.count <= share.total
    assert sorted(seen) == list(range(position, position + total))


@given(total=st.integers(1, 200), size=st.integers(2, 9), turns=st.integers(1, 7))
def test_a_turn_has_the_same_examples_in_every_world(total: int, size: int, turns: int) -> None:
    def turn_spans(world_size: int) -> list[tuple[int, int, int]]:
        own = shares(total, rank=0, world_size=world_size, turns=turns, epoch=0, position=0)
        return [(share.turn, share.position, share.total) for share in own]

    assert turn_spans(size) == turn_spans(1)


def test_ten_on_four_and_three_on_four() -> None:
    assert [cut(10, 4, part) for part in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert [cut(3, 4, part) for part in range(4)] == [(0, 1), (1, 2), (2, 3), (3, 3)]
