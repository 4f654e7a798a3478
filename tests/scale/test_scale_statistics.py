"""Medians over rounds, and intervals that hold what they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.scale.statistics import (
    LEVEL,
    LONGEST_S,
    MOST_BLOCKS,
    TICK_S,
    Blocks,
    Bootstrap,
    Interval,
    _student,
    interval,
    median,
    on_ticks,
)

TIMES = st.floats(1e-6, 1e3)


def blocks(values):
    """The blocks of a run of one rank with these times."""
    return Blocks.of(np.array([values], dtype=np.float64))


def rounds_of(rng, num_rounds, *, round_noise=0.1, step_noise=0.1, steps=40):
    """Runs whose true median over rounds is 1."""
    levels = np.exp(round_noise * rng.standard_normal(num_rounds))
    noise = 1 + step_noise * rng.standard_normal((num_rounds, steps))
    return {
        number: blocks(level * row) for number, (level, row) in enumerate(zip(levels, noise, strict=True))
    }


class TestTicks:
    @given(st.floats(-LONGEST_S, LONGEST_S))
    def test_a_time_moves_by_half_a_tick_at_most(self, seconds):
        assert abs(on_ticks(seconds) - seconds) <= TICK_S / 2
        assert on_ticks(on_ticks(seconds)) == on_ticks(seconds)

    @pytest.mark.parametrize("seconds", [math.nan, math.inf, 2 * LONGEST_S])
    def test_what_is_no_time_is_refused(self, seconds):
        with pytest.raises(ValueError, match="no time of a step"):
            on_ticks(seconds)

    def test_without_ticks_a_sum_of_differences_is_off(self):
        a, b, c = 0.1, 0.7, 1e-3
        assert (b - a) + (c - b) != c - a
        a, b, c = map(on_ticks, (a, b, c))
        assert (b - a) + (c - b) == c - a


class TestBlocks:
    @given(st.lists(TIMES, min_size=1, max_size=200))
    def test_no_step_is_lost(self, times):
        found = blocks(times)
        assert sum(found.num_steps) == len(times)
        assert len(found.num_steps) == min(MOST_BLOCKS, len(times))
        # a mean of means rounds twice, each time by few units of the last place of the sum
        assert found.value("mean") == pytest.approx(math.fsum(times) / len(times), rel=1e-12)

    @given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=60))
    def test_the_slowest_is_never_faster_than_the_mean(self, times):
        found = Blocks.of(np.array(times).T)
        assert found.value("lockstep") >= found.value("mean") * (1 - 1e-12)

    def test_the_slowest_of_each_step_and_not_the_slowest_rank(self):
        found = Blocks.of(np.array([[1.0, 3.0], [3.0, 1.0]]))
        assert (found.value("lockstep"), found.value("mean")) == (3.0, 2.0)

    def test_a_run_of_no_steps_has_no_blocks(self):
        assert Blocks.of(np.empty((2, 0))).num_steps == ()


class TestBootstrap:
    def test_the_same_runs_give_the_same_draws(self):
        runs = {"a": rounds_of(np.random.default_rng(1), 5)}
        first, again = (Bootstrap(runs).draws("a", "lockstep") for _ in range(2))
        assert (first == again).all()
        assert not (first == Bootstrap(runs, seed=1).draws("a", "lockstep")).all()

    def test_another_variant_changes_no_draw(self):
        runs = {"a": rounds_of(np.random.default_rng(1), 5)}
        more = runs | {"b": rounds_of(np.random.default_rng(2), 5)}
        assert (Bootstrap(runs).draws("a", "mean") == Bootstrap(more).draws("a", "mean")).all()

    def test_what_hits_a_round_is_not_in_a_difference(self):
        rng = np.random.default_rng(3)
        a = rounds_of(rng, 8, round_noise=0.3, step_noise=0.01)
        b = {number: blocks(0.02 + run.series("mean")) for number, run in a.items()}
        drawn = Bootstrap({"a": a, "b": b})
        apart = interval(drawn.draws("b", "mean") - drawn.draws("a", "mean"), 0.02)
        alone = interval(drawn.draws("a", "mean"), 1.0)
        assert apart.half_width < alone.half_width / 10  # steps differ by 1 %, rounds by 30 %
        assert not apart.has_zero
        # drawn from rounds of their own, as if they were not pairs, the difference drowns
        other = Bootstrap({"b": b}, seed=1).draws("b", "mean")
        assert interval(other - drawn.draws("a", "mean"), 0.02).has_zero

    def test_steps_of_two_runs_are_drawn_apart(self):
        same = rounds_of(np.random.default_rng(3), 5, step_noise=0.1)
        drawn = Bootstrap({"a": same, "b": same})
        apart = interval(drawn.draws("b", "mean") - drawn.draws("a", "mean"), 0.0)
        # two means of 40 steps of 10 %, of which the median of five runs has less than half
        assert 0.1 * (2 / 40) ** 0.5 / 2 < apart.half_width < 2 * 0.1 * (2 / 40) ** 0.5

    def test_both_series_of_a_run_are_drawn_together(self):
        one_rank = Bootstrap({"a": rounds_of(np.random.default_rng(3), 5)})
        assert (one_rank.draws("a", "mean") == one_rank.draws("a", "lockstep")).all()

    def test_steps_that_follow_each_other_are_drawn_together(self):
        slow = np.repeat(np.random.default_rng(4).standard_normal(32), 32) + 10
        shuffled = np.random.default_rng(5).permutation(slow)
        widths = [
            interval(Bootstrap({"a": {1: blocks(each)}}).draws("a", "mean"), 10.0).half_width
            for each in (slow, shuffled)
        ]
        # 32 values, each 32 times: √32 times as uncertain as 1024 values
        assert widths[0] > 3 * widths[1]

    def test_rounds_that_one_variant_lacks(self):
        runs = {"a": rounds_of(np.random.default_rng(6), 4), "b": {0: blocks([1.0, 1.1])}}
        draws = Bootstrap(runs).draws("b", "mean")
        # one round of four is in none of four draws with a chance of (3/4)^4
        assert np.isnan(draws).mean() == pytest.approx(0.75**4, abs=0.05)
        assert interval(draws, 1.05).low >= 1.0

    def test_an_interval_has_the_truth_in_it_as_often_as_it_says(self):
        rng, hits, trials = np.random.default_rng(7), 0, 300
        for _ in range(trials):
            runs = {"a": rounds_of(rng, 8, steps=16)}
            drawn = Bootstrap(runs, num_draws=400).draws("a", "mean")
            value = median([run.value("mean") for run in runs["a"].values()])
            around = interval(drawn, value)
            hits += around.low <= 1.0 <= around.high
        # four standard deviations of a count of 300 at 95 %: 4 · √(0.95 · 0.05 / 300) = 0.05
        assert hits / trials >= LEVEL - 0.05

    def test_one_round_does_not_know_how_rounds_differ(self):
        rng, hits, trials = np.random.default_rng(8), 0, 100
        for _ in range(trials):
            drawn = Bootstrap({"a": rounds_of(rng, 1)}, num_draws=200).draws("a", "mean")
            around = interval(drawn, float(np.median(drawn)))
            hits += around.low <= 1.0 <= around.high
        assert hits / trials < 0.6


class TestInterval:
    @given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.floats(-1, 1))
    def test_it_has_the_value_in_it(self, draws, value):
        found = interval(np.array(draws), value)
        assert found.low <= value <= found.high

    def test_without_draws_there_is_the_value_only(self):
        assert interval(np.array([np.nan]), 2.0) == Interval(low=2.0, high=2.0)

    @pytest.mark.parametrize(
        ("low", "high", "has"), [(-1, 1, True), (0, 1, True), (0.1, 1, False), (-2, -1, False)]
    )
    def test_zero(self, low, high, has):
        assert Interval(low=low, high=high).has_zero is has


class TestFewRounds:
    @staticmethod
    def held(num_rounds, *, usual, trials=400):
        """How often an interval of 95 % has the truth in it; with `usual`, what others tell is known."""
        rng, hits = np.random.default_rng(num_rounds), 0
        for _ in range(trials):
            runs = {"a": rounds_of(rng, num_rounds, round_noise=0.1, step_noise=0.0, steps=4)}
            drawn = Bootstrap(runs, num_draws=200).draws("a", "mean")
            value = median([run.value("mean") for run in runs["a"].values()])
            around = interval(drawn, value, num_rounds=num_rounds, usual=usual)
            hits += around.low <= 1.0 <= around.high
        return hits / trials

    @pytest.mark.parametrize("num_rounds", [2, 3, 4])
    def test_an_interval_over_few_rounds_has_the_truth_in_it_as_often_as_it_says(self, num_rounds):
        # the median of n rounds that are off by 10 % each: 0.1 / √n, and a little more from three on
        usual = 0.1 * (0.5, 0.449, 0.298)[num_rounds - 2] ** 0.5
        # four standard deviations of a count of 400 at 95 %: 4 · √(0.95 · 0.05 / 400) = 0.044
        assert self.held(num_rounds, usual=usual) >= LEVEL - 0.044

    def test_draws_alone_do_not(self):
        rng, hits, trials = np.random.default_rng(0), 0, 400
        for _ in range(trials):
            runs = {"a": rounds_of(rng, 3, round_noise=0.1, step_noise=0.0, steps=4)}
            drawn = Bootstrap(runs, num_draws=200).draws("a", "mean")
            around = interval(drawn, median([run.value("mean") for run in runs["a"].values()]))
            hits += around.low <= 1.0 <= around.high
        # none leaves the range of three rounds, which has the truth in it 1 − 2 · (1/2)³ of the time
        assert hits / trials == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / 400) ** 0.5)

    def test_rounds_that_agree_by_chance_are_not_believed(self):
        around = interval(np.full(100, 1.0), 1.0, num_rounds=3, usual=0.1)
        assert around.half_width > 0.1
        assert interval(np.full(100, 1.0), 1.0, num_rounds=3).half_width == 0.0

    @pytest.mark.parametrize(
        ("freedom", "due"), [(1, 12.7062), (4, 2.7764), (5, 2.5706), (6, 2.4469), (9, 2.2622), (60, 2.0003)]
    )
    def test_quantiles_of_student(self, freedom, due):
        # four terms of a series, and what the fifth could add: about 10 / freedom⁴
        assert _student(freedom) == pytest.approx(
            due, abs=max(1e-3, 10 / freedom**4) if freedom > 4 else 1e-3
        )


def test_one_round_that_was_disturbed_does_not_move_the_median_far():
    assert median([1.0, 1.01, 9.0]) == on_ticks(1.01)
    assert median([1.0, 2.0]) == 1.5
