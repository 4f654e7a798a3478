"""Bars from ideal to measured, which add up."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import Job

from samestep.scale import gap as gaps
from samestep.scale.estimates import Estimates
from samestep.scale.gap import EXCHANGE, INPUT, NORMS, SHARING, SMALLER_BATCH, UNDIVIDED, WAITING, gap
from samestep.scale.plan import Sweep
from samestep.scale.runs import Facts, Finished
from samestep.scale.statistics import Blocks
from samestep.scale.variants import comparisons

FACTS = Facts(devices=("cpu",), num_threads=(1,), precisions=("",), rank_step_s=(1.0,), rank_examples=None)
TIMES = st.floats(1e-7, 1e5)


def finished(variant, number, lockstep, mean, fastest):
    blocks = Blocks(lockstep=(lockstep,), mean=(mean,), fastest=(fastest,), num_steps=(50,))
    return Finished(variant=variant, round=number, status="cut", seconds=1.0, blocks=blocks, facts=FACTS)


def adds_up(found):
    """Whether the parts are the whole gap: exactly, in any order, and in plain floating point too."""
    parts = [part.seconds for part in found.parts]
    whole = Fraction(found.measured_s) - Fraction(found.ideal_s)
    assert sum(map(Fraction, parts)) == whole
    assert math.fsum(parts) == found.measured_s - found.ideal_s
    assert Fraction(found.measured_s - found.ideal_s) == whole
    assert sum(parts) == sum(reversed(parts)) == math.fsum(parts)
    return True


@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans(), st.booleans(), st.integers(2, 9), st.integers(1, 3))
def test_bars_add_up_exactly_for_any_times(data, is_weak, has_norms, gpus, rounds):
    comparison = comparisons([gpus], [data.draw(st.integers(gpus, 100))], is_weak=is_weak)[1]
    variants = dict.fromkeys(comparison.roles(has_norms=has_norms).values())
    runs = [
        finished(variant, number, data.draw(TIMES), data.draw(TIMES), data.draw(TIMES))
        for variant in variants
        for number in range(1, rounds + 1)
    ]
    found = gap(comparison, Estimates(runs), has_norms=has_norms)
    assert adds_up(found)
    assert len(found.parts) == 5 + has_norms
    assert all(part.low <= part.seconds <= part.high for part in found.parts)


def test_bars_of_rounded_times_would_not(monkeypatch):
    """The negative control: without whole ticks the differences do not telescope."""
    monkeypatch.setattr(gaps, "on_ticks", lambda seconds: seconds)
    monkeypatch.setattr("samestep.scale.statistics.on_ticks", lambda seconds: seconds)
    rng = np.random.default_rng(0)
    comparison = comparisons([3], [32])[1]
    variants = dict.fromkeys(comparison.roles(has_norms=False).values())
    runs = [finished(variant, 1, *10.0 ** rng.uniform(-4, 1, 3)) for variant in variants]
    found = gap(comparison, Estimates(runs), has_norms=False)
    whole = Fraction(found.measured_s) - Fraction(found.ideal_s)
    assert sum(Fraction(part.seconds) for part in found.parts) != whole


def test_each_bar_is_what_its_thing_costs():
    job = Job(
        fixed_s=0.004, fetch_s=2e-4, sharing_s=0.003, exchange_s=0.005, norms_s=0.002, late_s={3: 0.004},
        noise=1e-3, drift=0.02,
    )  # fmt: skip
    found = job.result(worlds=(1, 4)).gaps[0]
    assert adds_up(found)
    due = {
        SMALLER_BATCH: 0.004 * 3 / 4,
        SHARING: 0.003,  # a late rank does not slow down the others
        INPUT: 0.0,  # of a quarter of the examples on each, fetched side by side
        WAITING: 0.004,
        EXCHANGE: 0.005,
        NORMS: 0.002,
    }
    assert [part.name for part in found.parts] == list(due)
    # the median of six rounds of 2 % noise that both sides share, on steps of up to 30 ms
    assert {part.name: part.seconds for part in found.parts} == pytest.approx(due, abs=3e-4)
    assert [part.name for part in found.parts if part.is_noise] == [INPUT]


def test_what_is_not_there_is_noise_and_not_zero():
    found = Job(exchange_s=0.01, noise=0.02).result(worlds=(1, 2)).gaps[0]
    noise = {part.name: part for part in found.parts if part.is_noise}
    assert {SMALLER_BATCH, SHARING, INPUT} <= noise.keys()
    assert EXCHANGE not in noise
    assert all(part.seconds != 0 for part in noise.values())


def test_a_batch_that_grows_with_the_gpus_has_no_smaller_batch():
    found = Job(fixed_s=0.02, exchange_s=0.004).result(worlds=(1, 4), is_weak=True).gaps[0]
    assert adds_up(found)
    assert found.ideal_s == pytest.approx(0.052, rel=0.02)
    assert found.part(SMALLER_BATCH).seconds == 0.0
    assert found.part(EXCHANGE).seconds == pytest.approx(0.004, rel=0.1)


@pytest.mark.parametrize("missing", ["silent-4x32", "cached-4x32", "cached-1x8", "cached-1x32"])
def test_a_run_that_failed_leaves_one_bar(missing):
    found = Job(exchange_s=0.01, failing=(missing,)).result(worlds=(1, 4)).gaps[0]
    assert [part.name for part in found.parts] == [UNDIVIDED]
    assert adds_up(found)


def test_norms_that_cannot_be_told_apart_are_exchange():
    found = Job(exchange_s=0.01, norms_s=0.002, failing=("local-norms-4x32",)).result(worlds=(1, 4)).gaps[0]
    assert [part.name for part in found.parts][-1] == EXCHANGE
    assert found.part(EXCHANGE).seconds == pytest.approx(0.012, rel=0.1)
    assert adds_up(found)


@pytest.mark.parametrize("missing", ["full-4x32", "full-1x32"])
def test_without_ideal_or_measured_there_is_no_gap(missing):
    assert Job(failing=(missing,)).result(worlds=(1, 4)).gaps == []


def test_one_gpu_has_no_gap():
    sweep = Sweep(worlds=(1,), batches=(32,))
    (comparison,) = sweep.comparisons
    assert gap(comparison, Estimates(Job().runs(sweep)), has_norms=False) is None


def test_one_round_tells_no_bar_from_noise():
    job = Job(exchange_s=0.1, noise=1e-3)
    assert all(part.is_noise for part in job.result(worlds=(1, 2), rounds=1).gaps[0].parts)
    assert not job.result(worlds=(1, 2), rounds=2).gaps[0].part(EXCHANGE).is_noise
