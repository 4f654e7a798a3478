"""The process-wide generators: every draw is noticed, and everything is put back."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from samestep.data import generators
from samestep.data.generators import Snapshot, Stream, seed_all, seeded

DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "python, in a block that starts anew": lambda: [random.random() for _ in range(1248)],
    "python's Gaussian in reserve": lambda: random.gauss(0, 1),
    "python's seed": lambda: random.seed(1),
    "numpy": np.random.rand,
    "numpy's seed": lambda: np.random.seed(1),
    "torch": lambda: torch.rand(()),
    "torch's seed": lambda: torch.manual_seed(1),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_is_noticed_and_undone(draw: Callable[[], object]) -> None:
    seed_all(7)
    random.gauss(0, 1)  # the second Gaussian of a pair is drawn without moving the words
    before = Snapshot()
    assert not before.has_moved()
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    draw()
    assert before.has_moved()
    before.restore()
    assert not before.has_moved()
    assert state == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_the_words_of_python_are_found_where_they_are() -> None:
    """What is read in place is what Python says, at any position; else a slower way would be used."""
    assert generators._python_words is generators._words_in_place
    for _ in range(700):
        random.random()
        assert generators._words_in_place() == generators._packed_words()


def numbers() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(np.random.rand()), torch.rand(()).item()]


def test_a_stream_goes_on_where_it_left_off() -> None:
    with seeded(3):
        expected = [numbers(), numbers()]
    seed_all(11)
    outside = Snapshot()
    stream = Stream(3)
    drawn = []
    for _ in range(2):
        with stream.active():
            drawn.append(numbers())
        random.random(), np.random.rand(), torch.rand(())
        outside.restore()
    assert drawn == expected


def test_a_snapshot_survives_a_checkpoint() -> None:
    seed_all(5)
    random.gauss(0, 1)
    tree = Snapshot().to_tree()
    expected = numbers()
    seed_all(6)
    Snapshot.from_tree(tree).restore()
    assert numbers() == expected
