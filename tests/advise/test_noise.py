"""The gradient noise scale on problems whose answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from samestep.advise.noise import (
    FEWEST_STEPS,
    LEVEL,
    StepNorms,
    _t_quantile,
    examples_factor,
    noise_scale,
    steps_factor,
)
from samestep.errors import ConfigError

NUM_DIMENSIONS = 60
SPECTRUM = 1 / np.arange(1, NUM_DIMENSIONS + 1)
"""Eigenvalues of Σ: far from alike, as those of real gradients."""


def drawn(rng, counts, num_steps, noise, *, weights=None, shrink=None):
    """Steps of Gaussian gradients whose noise scale is known; G shrinks over the steps by `shrink`."""
    counts = np.asarray(counts, dtype=float)
    mean = np.full(NUM_DIMENSIONS, math.sqrt(SPECTRUM.sum() / noise / NUM_DIMENSIONS))
    means = np.outer(np.ones(num_steps) if shrink is None else shrink, mean)
    errors = rng.standard_normal((num_steps, len(counts), NUM_DIMENSIONS)) * np.sqrt(SPECTRUM)
    gradients = means[:, None] + errors / np.sqrt(counts)[:, None]
    by = counts / counts.sum() if weights is None else np.asarray(weights)
    wholes = np.einsum("p,spd->sd", by, gradients)
    return [
        StepNorms(
            num_examples=tuple(counts),
            square_norms=tuple((parts**2).sum(axis=1)),
            whole_square_norm=float((whole**2).sum()),
            weights=weights,
        )
        for parts, whole in zip(gradients, wholes, strict=True)
    ]


def mean_estimates(steps):
    """Means of tr(Σ) and |G|² over steps, each with its standard error."""
    found = np.array([step.estimates() for step in steps])
    return found.mean(axis=0), found.std(axis=0) / math.sqrt(len(found))


class TestKnownAnswer:
    @pytest.mark.parametrize("counts", [(16, 16), (4,) * 8, (11, 11, 10), (29, 2, 1)])
    def test_gaussian_gradients(self, counts):
        found = noise_scale(drawn(np.random.default_rng(0), counts, 4000, 24.0))
        assert found.value == pytest.approx(24.0, rel=0.1)
        # an interval is two standard errors to each side, and one in twenty misses: four, then
        assert abs(found.value - 24.0) < found.high - found.low < 0.2 * 24
        assert found.trace == pytest.approx(SPECTRUM.sum(), rel=0.05)
        assert found.square_gradient == pytest.approx(SPECTRUM.sum() / 24, rel=0.1)

    def test_linear_regression(self):
        rng = np.random.default_rng(1)
        x = rng.standard_normal((5000, 20)) * np.linspace(0.5, 2, 20)
        y = x @ rng.standard_normal(20) + rng.standard_normal(5000)
        at = np.zeros(20)
        each = (x @ at - y)[:, None] * x  # gradients of (x·w − y)² / 2, one an example
        mean = each.mean(axis=0)
        truth = ((each - mean) ** 2).sum(axis=1).mean() / (mean**2).sum()
        steps = []
        for _ in range(2000):
            batch = each[rng.integers(0, 5000, 24)]
            small = [batch[:10].mean(axis=0), batch[10:].mean(axis=0)]
            whole = batch.mean(axis=0)
            norms = tuple((g**2).sum() for g in small)
            steps.append(
                StepNorms(num_examples=(10, 14), square_norms=norms, whole_square_norm=(whole**2).sum())
            )
        found = noise_scale(steps)
        assert found.value == pytest.approx(truth, rel=0.1)
        assert abs(found.value - truth) < found.high - found.low < 0.2 * truth
        # the batches themselves, mistaken for single examples, would say something else
        wrong = [
            StepNorms(num_examples=(1, 1), square_norms=s.square_norms, whole_square_norm=s.whole_square_norm)
            for s in steps
        ]
        assert noise_scale(wrong).value < truth / 5

    def test_two_ranks_say_what_eight_shards_say(self):
        rng = np.random.default_rng(2)
        two, eight = (mean_estimates(drawn(rng, counts, 8000, 40.0)) for counts in [(32, 32), (8,) * 8])
        for (mean, error), truth in zip(
            [*zip(*two, strict=True), *zip(*eight, strict=True)],
            [SPECTRUM.sum(), SPECTRUM.sum() / 40] * 2,
            strict=True,
        ):
            assert abs(mean - truth) < 4 * error
        # and surer: more parts, more of the scatter is seen
        assert eight[1][0] < two[1][0]


class TestUnevenParts:
    @pytest.mark.parametrize(
        ("counts", "weights"),
        [((20, 4, 8), None), ((20, 4, 8), (1 / 3,) * 3), ((1, 31), None), ((1, 31), (0.5, 0.5))],
    )
    def test_both_estimates_are_unbiased(self, counts, weights):
        mean, error = mean_estimates(drawn(np.random.default_rng(3), counts, 20_000, 30.0, weights=weights))
        truth = np.array([SPECTRUM.sum(), SPECTRUM.sum() / 30])
        assert (np.abs(mean - truth) < 4 * error).all()
        assert (error < 0.02 * truth[0]).all()

    def test_weights_that_are_not_those_of_the_whole_are_seen(self):
        steps = drawn(np.random.default_rng(4), (1, 31), 20_000, 30.0, weights=(0.5, 0.5))
        mistaken = [
            StepNorms(
                num_examples=s.num_examples,
                square_norms=s.square_norms,
                whole_square_norm=s.whole_square_norm,
            )
            for s in steps
        ]
        mean, error = mean_estimates(mistaken)
        assert abs(mean[0] - SPECTRUM.sum()) > 10 * error[0]

    @given(st.lists(st.integers(1, 50), min_size=2, max_size=9), st.floats(0, 100), st.floats(0, 100))
    def test_expected_norms_give_the_truth_back(self, counts, trace, square):
        total = sum(counts)
        step = StepNorms(
            num_examples=tuple(counts),
            square_norms=tuple(square + trace / count for count in counts),
            whole_square_norm=square + trace / total,
        )
        assert step.estimates() == pytest.approx((trace, square), rel=1e-9, abs=1e-6)


class TestInterval:
    @pytest.mark.parametrize(
        ("counts", "num_steps", "noise"),
        [((16, 16), 24, 6.0), ((16, 16), 24, 32.0), ((4,) * 8, 24, 32.0), ((16, 16), 100, 160.0)],
    )
    def test_it_has_the_truth_as_often_as_it_says(self, counts, num_steps, noise):
        rng = np.random.default_rng(5)
        num_runs = 500
        found = [noise_scale(drawn(rng, counts, num_steps, noise)) for _ in range(num_runs)]
        hits = sum(each.low <= noise <= (math.inf if each.high is None else each.high) for each in found)
        # four standard errors of a share of 500
        margin = 4 * math.sqrt(LEVEL * (1 - LEVEL) / num_runs)
        assert abs(hits / num_runs - LEVEL) < margin

    def test_a_gradient_that_shrinks_makes_it_hardly_wider(self):
        rng = np.random.default_rng(6)
        shrink = np.geomspace(1.5, 0.6, 48)
        truth = 8.0 / (shrink**2).mean()
        widths, hits = [], 0
        for _ in range(200):
            steps = drawn(rng, (16, 16), 48, 8.0, shrink=shrink)
            kept, mixed = noise_scale(steps), noise_scale([steps[i] for i in rng.permutation(48)])
            hits += kept.low <= truth <= kept.high
            widths.append((kept.high - kept.low) / (mixed.high - mixed.low))
        assert hits >= 180
        # out of order, what shrinks is taken for scatter
        assert np.median(widths) < 0.7

    def test_a_gradient_that_drowns_in_noise_cannot_be_told(self):
        found = noise_scale(drawn(np.random.default_rng(7), (2, 2), 24, 1e4))
        assert found.value is None and found.high is None and not found.is_known
        assert "watch more steps" in found.reason
        # that it is large is known all the same
        assert 4 < found.low < 1e4
        told = noise_scale(drawn(np.random.default_rng(7), (2, 2), 24, 1.0))
        assert told.is_known and told.reason == ""

    def test_no_noise_at_all(self):
        step = StepNorms(num_examples=(4, 4), square_norms=(2.0, 2.0), whole_square_norm=2.0)
        found = noise_scale([step] * FEWEST_STEPS)
        assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)

    def test_no_gradient_at_all(self):
        step = StepNorms(num_examples=(4, 4), square_norms=(0.0, 0.0), whole_square_norm=0.0)
        found = noise_scale([step] * FEWEST_STEPS)
        assert (found.value, found.low, found.high) == (None, 0.0, None)

    def test_a_whole_shorter_than_any_noise_makes_it(self):
        step = StepNorms(num_examples=(4, 4), square_norms=(2.0, 2.0), whole_square_norm=0.5)
        found = noise_scale([step] * FEWEST_STEPS)
        assert (found.value, found.low, found.high) == (None, None, None) and found.square_gradient < 0

    def test_few_steps_say_nothing(self):
        steps = drawn(np.random.default_rng(8), (4, 4), FEWEST_STEPS - 1, 8.0)
        found = noise_scale(steps)
        assert not found.is_known and found.num_steps == 5 and "at least 6" in found.reason
        assert noise_scale([]).num_steps == 0

    @pytest.mark.parametrize("freedom", [3.5, 4, 8, 15.6, 60, 1000])
    def test_quantiles_of_students_t(self, freedom):
        assert _t_quantile(0.975, freedom) == pytest.approx(student.ppf(0.975, freedom), rel=0.006)


class TestFactors:
    def test_a_batch_of_the_noise_scale_takes_twice_of_both(self):
        assert examples_factor(64, 64) == 2.0 == steps_factor(64, 64)

    @given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0.1, 1e5))
    def test_examples_are_steps_times_batch(self, batch, than, noise):
        steps, examples = (f(batch, noise, than=than) for f in (steps_factor, examples_factor))
        assert examples == pytest.approx(steps * batch / than)
        # a larger batch never needs fewer examples, nor more steps
        assert (examples - 1) * (batch - than) >= 0 and (steps - 1) * (batch - than) <= 1e-9 * batch
        assert examples == pytest.approx(examples_factor(batch, noise) / examples_factor(than, noise))
        assert steps == pytest.approx(steps_factor(batch, noise) / steps_factor(than, noise))

    def test_ends(self):
        assert examples_factor(1e3, math.inf, than=8) == 1.0
        assert examples_factor(1e3, 0.0, than=100) == 10.0 and steps_factor(1e3, 0.0, than=100) == 1.0

    @pytest.mark.parametrize(
        "call",
        [
            lambda: examples_factor(0, 8),
            lambda: examples_factor(8, -1),
            lambda: steps_factor(8, math.nan),
            lambda: examples_factor(8, 0.0),
            lambda: examples_factor(8, 8, than=-1),
        ],
    )
    def test_what_is_no_batch_or_noise_is_refused(self, call):
        with pytest.raises(ConfigError):
            call()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_examples": (4,), "square_norms": (1.0,)}, "at least two parts"),
        ({"square_norms": (1.0,)}, "a count and a norm each"),
        ({"num_examples": (4, 0)}, "leave out the parts"),
        ({"square_norms": (1.0, math.nan)}, "must be finite"),
        ({"whole_square_norm": -1.0}, "not negative"),
        ({"weights": (1.0, 1.0)}, "add up to 1"),
        ({"weights": (1.0,)}, "one for each"),
    ],
)
def test_norms_that_make_no_sense_are_refused(changes, message):
    plain = {"num_examples": (4, 4), "square_norms": (1.0, 1.0), "whole_square_norm": 0.8}
    StepNorms(**plain)
    with pytest.raises(ConfigError, match=message):
        StepNorms(**plain | changes)
