"""Rows of the timing probe → loss against steps, examples and seconds."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from timing_rows import blocks, machine

from samestep.scale.curves import MOST_POINTS, Point, curve, thinned
from samestep.scale.variants import Cell

CELL = Cell(gpus=2, batch_size=16)
TIMES = [0.5, 0.25, 0.25, 0.5, 0.5, 0.25, 1.0]


def rank(losses, times=TIMES, num_examples=8, length=5):
    """Rows of a rank with these losses, one a step."""
    rows = blocks(times, length, num_examples=num_examples)
    return [machine(), *(replace(row, losses=tuple(losses[row.first_step - 1 :][:length])) for row in rows)]


def falling(count=7, by=1.0):
    return [10.0 - by * i for i in range(count)]


def points(*runs):
    return curve(CELL, runs).points


class TestOneRun:
    def test_a_point_a_step(self):
        found = curve(CELL, [{0: rank(falling()), 1: rank(falling())}])
        assert (found.gpus, found.batch_size) == (2, 16)
        assert [p.step for p in found.points] == [1, 2, 3, 4, 5, 6, 7]
        assert [p.examples for p in found.points] == [16 * i for i in range(1, 8)]
        assert [p.seconds for p in found.points] == np.cumsum(TIMES).tolist()
        assert [p.loss for p in found.points] == falling()

    def test_ranks_count_by_their_examples(self):
        uneven = points({0: rank([1.0] * 7, num_examples=6), 1: rank([4.0] * 7, num_examples=2)})
        assert {p.loss for p in uneven} == {1.75} and uneven[-1].examples == 56
        # the plain mean, 2.5, is another number
        unknown = points({0: rank([1.0] * 7, num_examples=None), 1: rank([4.0] * 7, num_examples=2)})
        assert {p.loss for p in unknown} == {2.5} and {p.examples for p in unknown} == {None}

    def test_a_rank_without_examples_has_no_say(self):
        found = points({0: rank([1.0] * 7), 1: rank([None] * 7, num_examples=0)})
        assert {p.loss for p in found} == {1.0}
        # one that has examples and no loss makes the step's unknown
        assert {p.loss for p in points({0: rank([1.0] * 7), 1: rank([None] * 7)})} == {None}

    def test_a_step_ends_with_the_last_rank(self):
        late = [0.5, 0.5, 0.0, 0.5, 0.5, 0.25, 1.0]
        found = points({0: rank(falling()), 1: rank(falling(), late)})
        assert [p.seconds for p in found] == np.maximum(np.cumsum(TIMES), np.cumsum(late)).tolist()

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
    def test_a_loss_that_is_no_number_is_null_and_stays_there(self, bad):
        losses = falling()
        losses[3] = bad
        found = points({0: rank(losses)})
        assert [p.loss is None for p in found] == [False, False, False, True, False, False, False]
        assert found[3].seconds == 1.5
        json.dumps(found, allow_nan=False)

    def test_a_run_without_times_does_not_count(self):
        assert points({0: [machine()]}, {0: rank(falling())}) == points({0: rank(falling())})
        assert points({0: [machine()]}) == points() == ()


class TestRounds:
    def test_the_median_over_rounds(self):
        runs = [
            {0: rank(falling(by=by), [t * slow for t in TIMES])} for by, slow in [(1, 1), (0.5, 4), (2, 2)]
        ]
        found = points(*runs)
        assert [p.loss for p in found] == falling()
        assert [p.seconds for p in found] == (2 * np.cumsum(TIMES)).tolist()

    def test_half_of_the_rounds_without_a_loss_make_it_null(self):
        bad = [math.nan] * 7
        good = falling()
        assert {p.loss for p in points({0: rank(bad)}, {0: rank(good)})} == {None}
        most = points({0: rank(bad)}, {0: rank(good)}, {0: rank(good)})
        assert [p.loss for p in most] == good

    def test_runs_of_other_lengths(self):
        slow = {0: rank(falling(), [3 * t for t in TIMES])}
        quick = {0: rank(falling(4), TIMES[:4])}
        found = points(slow, quick)
        assert [p.step for p in found] == [1, 2, 3, 4, 5, 6, 7]
        assert [p.seconds for p in found[:4]] == (2 * np.cumsum(TIMES[:4])).tolist()
        # beyond the end of one, the other's own steps follow: no jump to its own sum
        steps = np.diff([p.seconds for p in found])
        assert steps[3:].tolist() == [3 * t for t in TIMES[4:]]
        assert [p.examples for p in found] == [8 * i for i in range(1, 8)]

    def test_seconds_never_fall(self):
        rng = np.random.default_rng(0)
        for _ in range(30):
            runs = [
                {0: rank(falling(n, 0.01), rng.exponential(size=n).tolist())} for n in rng.integers(1, 40, 5)
            ]
            assert min(np.diff([0.0, *(p.seconds for p in points(*runs))])) >= 0


class TestThinned:
    def test_no_more_than_so_many_points_with_both_ends(self):
        count = 12_345
        found = points({0: rank(falling(count, 1e-4), [0.01] * count)})
        assert len(found) == MOST_POINTS == len({p.step for p in found})
        assert (found[0].step, found[-1].step) == (1, count)
        assert max(np.diff([p.step for p in found])) <= math.ceil(count / (MOST_POINTS - 1))

    def test_few_points_stay_as_they_are(self):
        many = [Point(i, i, float(i), 1.0) for i in range(MOST_POINTS)]
        assert thinned(many) == tuple(many)

    def test_a_missing_loss_is_not_thinned_out(self):
        many = [Point(i, i, float(i), None if i == 5001 else 1.0) for i in range(20_000)]
        found = thinned(many)
        assert [p.step >= 5001 for p in found if p.loss is None] == [True]
        assert {p.loss for p in thinned([p._replace(loss=1.0) for p in many])} == {1.0}
