"""Rows → times of steps, and the end of warm-up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing_rows import blocks, machine

from samestep.errors import RecordError
from samestep.scale.timing import run_times, warm_up


def settled(rng, count, level=0.02, noise=0.05):
    return level * np.exp(noise * rng.standard_normal(count))


class TestWarmUp:
    @pytest.mark.parametrize("slow", [1, 3, 10, 25])
    def test_slow_steps_at_the_beginning_are_left_out(self, slow):
        series = settled(np.random.default_rng(slow), 150)
        series[:slow] *= 5
        found = warm_up(series)
        assert found.is_over
        # a batch of five has the end of warm-up in it; noise may take a few more, never half
        assert slow <= found.num_steps <= slow + 30

    def test_the_mean_is_then_that_of_settled_steps(self):
        series = settled(np.random.default_rng(0), 200)
        late = series.copy()
        late[:12] += np.geomspace(1.0, 1e-3, 12)
        found = warm_up(late)
        # 2 standard errors of 5 % noise over some 180 steps
        assert late[found.num_steps :].mean() == pytest.approx(series.mean(), rel=0.01)
        assert late.mean() > 1.5 * series.mean()

    def test_steps_that_only_scatter_lose_little(self):
        rng = np.random.default_rng(1)
        found = [warm_up(settled(rng, 100)) for _ in range(300)]
        assert np.mean([each.num_steps for each in found]) < 15
        # three standard errors, in either direction, where the minimum is at the end of its range
        assert sum(not each.is_over for each in found) <= 3

    def test_few_steps_that_only_scatter_are_not_said_to_change(self):
        rng = np.random.default_rng(2)
        found = [warm_up(settled(rng, 20)) for _ in range(300)]
        # of ten steps a standard error is not known well: one in twenty rather than one in 370
        assert sum(not each.is_over for each in found) < 15

    def test_steps_that_still_get_faster_have_not_settled(self):
        series = settled(np.random.default_rng(3), 100) * np.linspace(3, 1, 100)
        assert not warm_up(series).is_over

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_of_hardly_any_steps_nothing_is_known(self, count):
        found = warm_up(np.full(count, 0.02))
        assert (found.num_steps, found.is_over) == (0, False)

    def test_fewer_than_twenty_are_taken_one_by_one(self):
        series = np.full(12, 0.02)
        series[:2] = 1.0
        assert warm_up(series).num_steps == 2

    def test_equal_steps_are_all_kept(self):
        assert warm_up(np.full(60, 0.02)).num_steps == 0

    @given(st.lists(st.floats(1e-6, 1e3), max_size=120))
    def test_at_least_half_is_kept(self, series):
        found = warm_up(np.array(series))
        assert 0 <= found.num_steps <= len(series) / 2

    @given(st.lists(st.floats(0.01, 1.0), min_size=20, max_size=60), st.integers(-10, 10))
    def test_the_unit_of_time_does_not_matter(self, series, power):
        # by powers of two, which round nothing
        assert warm_up(np.array(series)) == warm_up(np.array(series) * 2.0**power)


class TestRunTimes:
    def test_steps_by_rank(self):
        times = np.arange(1.0, 41.0).reshape(2, 20)
        found = run_times({1: [machine(), *blocks(times[1])], 0: [machine(), *blocks(times[0])]})
        assert found.ranks == (0, 1)
        assert found.steps == tuple(range(1, 21))
        assert (found.step_s == times).all()

    def test_blocks_of_ranks_need_not_be_alike(self):
        times = np.arange(1.0, 41.0).reshape(2, 20)
        found = run_times({0: blocks(times[0], length=4), 1: blocks(times[1], length=7)})
        assert (found.step_s == times).all()

    def test_steps_that_one_rank_did_not_write_are_left_out(self):
        times = np.ones(20)
        found = run_times({0: blocks(times), 1: blocks(times[:13]), 2: blocks(times)[1:]})
        assert found.steps == tuple(range(6, 14))

    def test_where_a_device_runs_behind_a_block_is_known_as_a_whole(self):
        rows = [machine(device="cuda:0"), *blocks(np.array([0.1, 0.1, 0.1, 0.1, 1.6]), seconds=2.0)]
        assert run_times({0: rows}).step_s.tolist() == [[0.4] * 5]

    def test_blocks_without_steps_of_their_own(self):
        (row,) = blocks(np.array([0.5] * 4), length=4, step_s=(), seconds=1.0)
        assert run_times({0: [row]}).step_s.tolist() == [[0.25] * 4]

    def test_evaluation_is_of_no_step_where_a_device_runs_behind(self):
        rows = blocks(
            np.full(10, 0.02),
            seconds=lambda first: 3.1 if first == 1 else 0.1,
            phases_s=lambda first: {"forward": 0.1, "evaluation": 3.0 if first == 1 else 0.0},
        )
        gpu = [machine(device="cuda:0"), *rows]
        assert run_times({0: gpu}).step_s == pytest.approx(np.full((1, 10), 0.02))

    def test_of_a_block_that_the_end_cut_short_a_device_tells_nothing(self):
        tail = blocks(np.full(1, 5.0), num_steps=0, step_s=(), first_step=13)
        rows = [*blocks(np.full(12, 0.02), seconds=lambda first: 0.1 if first < 11 else 1e-6), *tail]
        assert run_times({0: [machine(device="cuda:0"), *rows]}).steps == tuple(range(1, 11))
        assert run_times({0: [machine(), *rows]}).steps == tuple(range(1, 13))
        # of a program that took hardly any step there is nothing else
        few = [machine(device="cuda:0"), *blocks(np.full(4, 0.02)), *tail]
        assert run_times({0: few}).steps == (1, 2, 3, 4)

    def test_warm_up_is_that_of_the_slowest_rank(self):
        times = np.full((2, 60), 0.02)
        times[1, :10] = 1.0
        found = run_times({rank: blocks(times[rank]) for rank in (0, 1)})
        assert found.warm_up.num_steps == 10
        assert found.kept_s.shape == (2, 50)
        assert found.first_kept == 11

    @pytest.mark.parametrize("rows", [{}, {0: []}, {0: blocks(np.ones(5)), 1: []}])
    def test_no_step_of_all_ranks_is_refused(self, rows):
        with pytest.raises(RecordError, match="no step that all ranks took"):
            run_times(rows)


def test_what_comes_before_the_first_batch_is_no_part_of_the_first_step():
    first, *rest = blocks([5.0] + [0.1] * 20, length=1, phases_s=lambda step: {"other": 4.7 * (step == 1)})
    assert run_times({0: [machine(), first, *rest]}).step_s[0, :2].tolist() == pytest.approx([0.3, 0.1])
    # steps that were timed together cannot be told apart
    together = blocks([5.0] + [0.1] * 20, length=7, phases_s=lambda step: {"other": 4.7 * (step == 1)})
    assert run_times({0: [machine(), *together]}).step_s[0, 0] == pytest.approx(5.0)
