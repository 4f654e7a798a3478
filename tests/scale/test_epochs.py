"""What an epoch costs beside its steps, and its gap."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import STEPS, Job

from samestep.scale.epochs import FIXED, fixed_s
from samestep.scale.plan import Sweep

SECONDS = st.floats(0, 1e4)


def runs(**facts):
    sweep = Sweep(worlds=(1,), batches=(32,))
    return [run for run in Job(facts=facts).runs(sweep, 3) if run.variant.kind == "full"]


@settings(max_examples=20, deadline=None)
@given(SECONDS, SECONDS, SECONDS, st.integers(1, 10**6), st.booleans())
def test_the_bars_of_an_epoch_add_up_to_the_last_bit(evaluation_s, start_s, warm_up_s, examples, is_weak):
    facts = {"evaluation_s": evaluation_s, "start_s": start_s, "warm_up_s": warm_up_s}
    job = Job(exchange_s=3e-3, fetch_s=1e-4, facts=facts, loading={"num_examples": examples})
    for gap in job.result(rounds=2, is_weak=is_weak).gaps:
        total = sum(Fraction(part.seconds) for part in gap.epoch.parts)
        assert total == Fraction(gap.epoch.measured_s) - Fraction(gap.epoch.ideal_s)


def test_steps_times_each_bar_then_what_does_not_shrink_with_the_ranks():
    facts = {"evaluation_s": 3.0, "checkpoint_s": 1.0, "start_s": 8.0, "warm_up_s": 0.5}
    result = Job(exchange_s=5e-3, facts=facts, loading={"num_examples": 32 * 53}).result(worlds=(1, 2))
    (gap,) = result.gaps
    cell = result.cells[1]
    epochs = (STEPS + 10) / 53
    assert cell.steps_per_epoch == 53 and cell.evaluation_s == pytest.approx(3.0 / epochs)
    parts = {part.name: part.seconds for part in gap.epoch.parts}
    for part in gap.parts:
        assert parts[part.name] == 53 * part.seconds
    half = {
        "evaluation": 1.5 / epochs,
        "checkpoint": 0.5 / epochs,
        "start-up": 4.0,
        "compile and warm-up": 0.25,
    }
    for name, seconds in half.items():
        assert parts[name] == pytest.approx(seconds, abs=1e-8)
    assert gap.epoch.measured_s == pytest.approx(cell.epoch_s + 8.5, abs=1e-6)


def test_what_a_program_does_not_have_is_no_bar():
    (gap,) = Job().result(worlds=(1, 2)).gaps
    assert not {part.name for part in gap.epoch.parts} & set(FIXED)


def test_a_run_shorter_than_an_epoch_does_not_tell_that_there_is_no_evaluation():
    assert fixed_s("evaluation", runs(), STEPS + 10) == {1: 0.0, 2: 0.0, 3: 0.0}
    assert fixed_s("evaluation", runs(), STEPS + 11) == {}
    seen = fixed_s("evaluation", runs(evaluation_s=1.0), 2 * (STEPS + 10))
    assert seen == {1: 2.0, 2: 2.0, 3: 2.0}


def test_warm_up_is_that_of_processes_that_were_started_if_there_are_any():
    first, *forked = runs(warm_up_s=0.1)
    cold = replace(first, facts=replace(first.facts, start_s=5.0, warm_up_s=0.7))
    assert fixed_s("compile and warm-up", [cold, *forked], 10) == {1: 0.7}
    assert fixed_s("start-up", [cold, *forked], 10) == {1: 5.0}
    assert fixed_s("compile and warm-up", forked, 10) == {2: 0.1, 3: 0.1}


def test_a_task_says_itself_how_long_its_epoch_is():
    job = Job(facts={"steps_per_epoch": 7}, loading={"num_examples": None})
    result = job.result(worlds=(1, 2))
    assert [cell.steps_per_epoch for cell in result.cells] == [7, 7]
    assert "about 224 examples" in next(f.message for f in result.findings if f.cause == "short-epoch")
    assert Job(loading={"num_examples": None}).result(worlds=(1, 2)).gaps[0].epoch is None
