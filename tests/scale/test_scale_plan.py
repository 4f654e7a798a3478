"""Which runs, in which order, until when."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import Job

from samestep.scale.plan import FEWEST_ROUNDS, MOST_ROUNDS, Plan, Sweep, outlook, round_order
from samestep.scale.variants import Cell

SWEEP = Sweep(worlds=(1, 2, 4), batches=(32,), budget_s=1000.0)
CELLS = [comparison.cell for comparison in SWEEP.comparisons]
WORLDS = st.sets(st.integers(1, 8), min_size=1, max_size=4)
BATCHES = st.sets(st.integers(8, 64), min_size=1, max_size=3)
NARROW, WIDE = dict.fromkeys(CELLS, 0.01), dict.fromkeys(CELLS, 0.2)


def names(planned):
    return [each.variant.name for each in planned]


class TestOrder:
    @given(WORLDS, BATCHES, st.integers(0, 9), st.integers(1, 50))
    def test_a_round_is_a_permutation(self, worlds, batches, seed, number):
        variants = Plan(Sweep(worlds=tuple(worlds), batches=tuple(batches))).variants
        order = round_order(variants, number, seed)
        assert sorted(order) == sorted(variants)
        assert len(set(order)) == len(order)
        assert order == round_order(reversed(variants), number, seed)

    def test_rounds_and_seeds_have_orders_of_their_own(self):
        variants = Plan(SWEEP).variants
        orders = {tuple(round_order(variants, number, seed)) for number in range(5) for seed in range(5)}
        assert len(orders) == 25

    def test_no_variant_has_a_place_of_its_own(self):
        variants = Plan(SWEEP).variants
        firsts = [round_order(variants, number, 0)[0] for number in range(2000)]
        due = 2000 / len(variants)
        # five standard deviations of a count: one in two million
        assert all(abs(firsts.count(v) - due) < 5 * math.sqrt(due) for v in variants)


class TestMissing:
    def test_the_first_round_has_all(self):
        assert sorted(names(Plan(SWEEP).missing())) == sorted([
            "full-1x32", "cached-1x32", "full-2x32", "silent-2x32", "cached-2x32", "cached-1x16",
            "full-4x32", "silent-4x32", "cached-4x32", "cached-1x8",
        ])  # fmt: skip
        assert Plan(SWEEP).is_between_rounds

    def test_norms_add_a_variant(self):
        assert "local-norms-2x32" in names(Plan(SWEEP, has_norms=True).missing())

    def test_a_sweep_that_was_interrupted_goes_on(self):
        order = Plan(SWEEP).missing()
        runs = [Job().run(each.variant, each.round) for each in order[:4]]
        plan = Plan(SWEEP, runs)
        assert plan.missing() == order[4:]
        assert (plan.num_rounds, plan.is_between_rounds) == (0, False)

    @settings(max_examples=40, deadline=None)
    @given(WORLDS, BATCHES, st.integers(0, 40), st.integers(0, 10))
    def test_more_runs_never_widen_the_plan(self, worlds, batches, some, more):
        sweep = Sweep(worlds=tuple(worlds), batches=tuple(batches))
        runs = Job().runs(sweep, rounds=2)
        before, after = Plan(sweep, runs[:some]), Plan(sweep, runs[: some + more])
        assert set(after.variants) <= set(before.variants)
        assert after.num_rounds >= before.num_rounds
        if after.num_rounds == before.num_rounds:
            assert set(after.missing()) <= set(before.missing())

    def test_what_was_found_later_is_made_up_for(self):
        runs = Job().runs(SWEEP, rounds=1)
        plan = Plan(SWEEP, runs, has_norms=True)
        assert {(each.variant.name, each.round) for each in plan.missing()} == {
            ("local-norms-2x32", 1),
            ("local-norms-4x32", 1),
        }


class TestFailures:
    def test_a_cell_that_failed_is_not_measured_any_further(self):
        runs = Job(failing=("full-4x32",)).runs(SWEEP, rounds=2)
        plan = Plan(SWEEP, runs)
        assert plan.num_rounds == 2
        assert not any(variant.gpus == 4 for variant in plan.variants)
        assert "cached-1x8" not in names(plan.missing())
        assert "cached-1x16" in names(plan.missing())

    def test_without_one_gpu_there_is_only_how_long_others_take(self):
        runs = Job(failing=("full-1x32",)).runs(SWEEP, rounds=2)
        assert sorted(names(Plan(SWEEP, runs).missing())) == ["full-2x32", "full-4x32"]

    def test_a_part_that_failed_does_not_end_its_cell(self):
        runs = Job(failing=("silent-4x32",)).runs(SWEEP, rounds=2)
        plan = Plan(SWEEP, runs)
        assert "silent-4x32" not in names(plan.missing()) and "full-4x32" in names(plan.missing())

    def test_nothing_is_left(self):
        failing = ("full-1x32", "full-2x32", "full-4x32")
        plan = Plan(SWEEP, Job(failing=failing).runs(SWEEP, rounds=1))
        assert plan.missing() == []
        assert plan.num_rounds == 0
        assert plan.decide({}, 1.0).is_over


class TestDecide:
    def plan(self, rounds, **changes):
        sweep = Sweep(**{"worlds": (1, 2, 4), "batches": (32,), "budget_s": 1000.0} | changes)
        return Plan(sweep, Job().runs(sweep, rounds))

    def test_narrow_intervals_end_it(self):
        decision = self.plan(FEWEST_ROUNDS).decide(NARROW, 10.0)
        assert decision.is_over
        assert "±1.0%, and ±3.0% was asked for" in decision.reason

    def test_not_of_too_few_rounds(self):
        assert not self.plan(FEWEST_ROUNDS - 1).decide(NARROW, 10.0).is_over

    def test_one_wide_interval_keeps_it_going(self):
        assert not self.plan(5).decide(NARROW | {CELLS[2]: 0.05}, 10.0).is_over

    def test_one_that_is_not_known_as_well(self):
        assert not self.plan(5).decide(NARROW | {CELLS[2]: None}, 10.0).is_over

    def test_the_budget_ends_it(self):
        decision = self.plan(1).decide(WIDE, 1000.0)
        assert decision.is_over and "1000 s is used up" in decision.reason

    def test_a_round_that_does_not_fit_is_not_begun(self):
        plan = self.plan(3)
        decision = plan.decide(WIDE, 1001.0 - plan.round_s)
        assert decision.is_over and "a round takes" in decision.reason
        assert not plan.decide(WIDE, 999.0 - plan.round_s).is_over

    def test_while_rounds_are_few_the_next_is_begun_as_long_as_there_is_time(self):
        plan = self.plan(2)
        assert not plan.decide(WIDE, 999.0).is_over
        assert plan.decide(WIDE, 1001.0).is_over

    def test_rounds_that_are_made_anyway_and_rounds_at_most(self):
        anyway = replace(SWEEP, fewest_rounds=2)
        runs = Job().runs(SWEEP, rounds=2)
        assert not Plan(anyway, runs[:-1]).decide(WIDE, 10_000.0).is_over
        assert Plan(anyway, runs).decide(WIDE, 10_000.0).is_over
        most = Plan(replace(anyway, most_rounds=1), runs[: len(runs) // 2]).decide(WIDE, 0.0)
        assert most.is_over and "asked for, 1 round, are made" in most.reason

    def test_how_long_it_still_takes(self):
        runs = Job().runs(SWEEP, rounds=3)
        assert Plan(SWEEP, []).remaining_s({}, 0.0) is None
        plan = Plan(SWEEP, runs[: len(runs) // 3])
        # rounds until it may be precise, and those that an interval 1.4 times too wide needs
        assert plan.remaining_s(WIDE, 0.0) == pytest.approx(2 * plan.round_s)
        whole = Plan(SWEEP, runs)
        twice = dict.fromkeys(WIDE, SWEEP.precision * 1.4)
        assert whole.remaining_s(twice, 0.0) == pytest.approx(3 * whole.round_s)
        assert whole.remaining_s(twice, 995.0) == pytest.approx(whole.round_s)

    def test_a_round_that_was_begun_is_ended(self):
        sweep = SWEEP
        runs = Job().runs(sweep, rounds=2)
        assert not Plan(sweep, runs[:-3]).decide(WIDE, 999.0).is_over

    def test_the_first_round_is_made_whole(self):
        runs = Job().runs(SWEEP, rounds=1)
        assert not Plan(SWEEP, runs[:-1]).decide(WIDE, 10_000.0).is_over

    def test_it_ends_without_a_budget_too(self):
        assert self.plan(MOST_ROUNDS, worlds=(1,), budget_s=None).decide({CELLS[0]: 0.2}, 1e9).is_over
        assert not self.plan(MOST_ROUNDS - 1, worlds=(1,), budget_s=None).decide({CELLS[0]: 0.2}, 1e9).is_over


class TestOutlook:
    def test_four_times_the_rounds_halve_it(self):
        found = outlook(3, 0.06, 0.03, 10.0)
        assert (found.more_rounds, found.more_s) == (9, 90.0)
        assert found.expected_half_width == pytest.approx(0.03)
        assert str(found) == "±6.0% after 3 rounds; 9 more, about 90 s, would make it about ±3.0%"

    @given(st.integers(1, 1000), st.floats(1e-6, 2.0), st.floats(1e-3, 0.5), st.floats(0, 100))
    def test_more_never_buys_a_wider_one(self, rounds, width, precision, round_s):
        found = outlook(rounds, width, precision, round_s)
        assert found.more_rounds > 0
        assert found.expected_half_width < width
        if width > precision:
            # rounds are whole, and roots round in the last place
            assert found.expected_half_width <= precision * (1 + 1e-9)

    @given(st.integers(1, 100), st.integers(1, 100), st.floats(0.031, 1.0))
    def test_who_has_more_rounds_needs_no_more_to_come_as_far(self, some, more, width):
        def to_come(rounds):
            return outlook(rounds, width / math.sqrt(rounds), 0.001, 1.0).more_rounds

        # a whole round up or down by rounding of the root
        assert to_come(some + more) <= to_come(some) + 1

    def test_of_a_plan(self):
        plan = Plan(SWEEP, Job().runs(SWEEP, rounds=3))
        assert plan.outlook(WIDE).half_width == 0.2
        assert plan.outlook(WIDE | {CELLS[0]: None}) is None
        assert Plan(SWEEP).outlook(WIDE) is None


def test_the_time_that_is_left_is_known_from_runs_of_the_same_kind():
    runs = Job().runs(SWEEP, rounds=1)
    plan = Plan(SWEEP, runs)
    assert plan.round_s == pytest.approx(sum(run.seconds for run in runs))
    assert plan.missing_s == plan.round_s
    assert Plan(SWEEP).round_s is None and Plan(SWEEP).missing_s is None
    assert 0 < Plan(SWEEP, runs[:5]).missing_s < Plan(SWEEP, runs[:5]).round_s


def test_what_may_change_when_a_sweep_is_continued():
    same = Sweep(worlds=(1, 2, 4), batches=(32,), budget_s=5.0, precision=0.1)
    assert same.settings() == SWEEP.settings()
    assert Sweep(worlds=(1, 2), batches=(32,)).settings() != SWEEP.settings()
    assert Cell(gpus=4, batch_size=32) in CELLS
