"""The default shuffle is a function: a permutation, random enough, found at any position at once."""

import time
import tracemalloc
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.data.order import Sequential, Shuffled


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_every_index_exactly_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(Shuffled(n, seed=seed, epoch=epoch).slice(0, n).tolist()) == list(range(n))


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 10**12), data=st.data())
def test_a_position_is_found_without_walking(n: int, data: st.DataObject) -> None:
    order = Shuffled(n, seed=5, epoch=2)
    start = data.draw(st.integers(0, n - 1))
    block = order.slice(start, start + 50)
    assert ((block >= 0) & (block < n)).all()
    assert len(block) == min(50, n - start) == len(set(block.tolist()))
    assert order.at(np.array([start + len(block) - 1])).tolist() == block[-1:].tolist()


def test_small_permutations_are_all_reached_alike() -> None:
    # 24 permutations, 6,000 seeds: 250 expected each. Chi-square with 23 degrees of freedom is above 49.7
    # once in 1,000 times if all are equally likely; the seeds are fixed, so this does not flicker.
    seen = Counter(tuple(Shuffled(4, seed=seed, epoch=0).slice(0, 4).tolist()) for seed in range(6000))
    assert len(seen) == 24
    assert sum((count - 250) ** 2 / 250 for count in seen.values()) < 49.7


def test_where_an_index_lands_is_uniform_and_neighbours_part() -> None:
    n = 10_000
    order = Shuffled(n, seed=1, epoch=0).slice(0, n)
    # the mean distance of neighbours in a random permutation is (n + 1) / 3 with standard deviation of the
    # mean near n·√(1/18)/√n·√(1+small): four of these make the bound
    distance = np.abs(np.diff(order)).mean()
    assert abs(distance - (n + 1) / 3) < 4 * n * np.sqrt(1 / 18 / n) * 1.5
    first_tenth = np.histogram(order[: n // 10], bins=10, range=(0, n))[0]
    assert ((first_tenth - 100) ** 2 / 100).sum() < 27.9  # chi-square, 9 degrees, 1 in 1,000
    other = Shuffled(n, seed=1, epoch=1).slice(0, n)
    assert (order == other).sum() < 10, "the next epoch repeats the order"


def test_a_billion_examples_start_at_once_without_memory() -> None:
    tracemalloc.start()
    began = time.perf_counter()
    order = Shuffled(10**9, seed=0, epoch=0)
    order.slice(0, 4096)
    order.slice(987_654_321, 987_654_321 + 4096)
    seconds = time.perf_counter() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert seconds < 1.0, "looks like walking: a billion steps take minutes"


def test_sequential_is_the_data_sets_own_order() -> None:
    assert Sequential(5).slice(1, 99).tolist() == [1, 2, 3, 4]
