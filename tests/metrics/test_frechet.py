import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import worlds
from samestep import metrics
from samestep.errors import ConfigError, DataError
from samestep.metrics import FrechetDistance
from samestep.metrics.packing import pack, unpack

UNIT = 2.0**-53
WIDTH = 4
RNG = np.random.default_rng(7)
MIX = RNG.normal(size=(WIDTH, WIDTH))
REAL = RNG.normal(size=(61, WIDTH)) @ MIX + 3.0
OTHER = RNG.normal(size=(47, WIDTH)) + 1.0


def one_pass(real, other):
    """The distance by numpy, from all features at once; the root by the eigenvalues of S1 S2."""
    apart = real.mean(axis=0) - other.mean(axis=0)
    s1, s2 = np.cov(real, rowvar=False), np.cov(other, rowvar=False)
    shared = np.sqrt(np.linalg.eigvals(s1 @ s2).real.clip(min=0)).sum()
    return float(apart @ apart + np.trace(s1) + np.trace(s2) - 2 * shared)


def rounding(real, other):
    """A bound on the rounding of two float64 results, absolute.

    Means and scatters are sums of n terms, merged in any order: relative error at most (n + 3k) u against
    the largest sum that occurs, for k merges with 3 roundings each (k <= n). With the features' largest
    absolute value c, every entry of a covariance has error 4 n u c², the trace d of them; eigenvalues move
    by at most the norm of that error (Weyl), d times an entry. A root sqrt(λ) moves by δ / (2 sqrt(λ)).
    """
    n, d = len(real) + len(other), real.shape[1]
    c = max(np.abs(real).max(), np.abs(other).max())
    error = 4 * n * UNIT * c * c * d
    s1, s2 = np.cov(real, rowvar=False), np.cov(other, rowvar=False)
    smallest = np.linalg.eigvals(s1 @ s2).real.min()
    product = error * (np.linalg.norm(s1) + np.linalg.norm(s2)) * d
    return 2 * (3 * d * error + 2 * d * product / (2 * np.sqrt(smallest)))


def fed(real, other):
    metric = FrechetDistance(num_features=real.shape[1])
    metric.update(torch.from_numpy(real), real=True)
    metric.update(torch.from_numpy(other), real=False)
    return metric


def share_of(rows, rank, cuts):
    edges = [0, *cuts, len(rows)]
    return rows[edges[rank] : edges[rank + 1]]


def distance_over_ranks(world, real_cuts, other_cuts, own_sync):
    metric = FrechetDistance(num_features=WIDTH)
    for rows, cuts, real in ((REAL, real_cuts, True), (OTHER, other_cuts, False)):
        mine = torch.from_numpy(share_of(rows, world.rank, cuts))
        for piece in mine.split(5):
            if len(piece):
                metric.update(piece, real=real)
    return float(metric.compute() if own_sync else metrics.compute(metric, world).value)


# rank by rank: even, very uneven, ranks without real, without other, without any features
CUTS = {
    1: [([], [])],
    2: [([31], [20]), ([0], [0]), ([61], [0]), ([1], [46])],
    3: [([3, 5], [0, 47]), ([0, 0], [0, 0]), ([30, 30], [10, 10])],
    4: [([1, 1, 60], [0, 0, 1]), ([61, 61, 61], [0, 0, 47])],
}


@pytest.mark.parametrize("own_sync", [False, True], ids=["merged", "torchmetrics_sync"])
@pytest.mark.parametrize("size", CUTS)
def test_any_partition_over_ranks_gives_the_value_of_one_pass(size, own_sync):
    for real_cuts, other_cuts in CUTS[size]:
        values = worlds.run(
            size, distance_over_ranks, real_cuts=real_cuts, other_cuts=other_cuts, own_sync=own_sync
        )
        assert len(set(values)) == 1
        assert values[0] == pytest.approx(one_pass(REAL, OTHER), rel=0, abs=rounding(REAL, OTHER))


def stored_real_stream(world):
    metric = FrechetDistance(num_features=WIDTH)
    metric.update(torch.from_numpy(REAL[world.rank :: world.size]), real=True)
    return bytes(pack(metrics.state_of(metric, world), torch.device("cpu")).numpy())


def resumed_with_other_stream(world, stored):
    metric = FrechetDistance(num_features=WIDTH)
    state = unpack(torch.frombuffer(bytearray(stored), dtype=torch.uint8))
    metrics.load_state(metric, state, world)
    metric.update(torch.from_numpy(OTHER[world.rank :: world.size]), real=False)
    return float(metrics.compute(metric, world).value)


def test_a_stored_state_goes_on_in_a_smaller_world():
    stored = worlds.run(3, stored_real_stream)[0]
    for value in worlds.run(2, resumed_with_other_stream, stored=stored):
        assert value == pytest.approx(one_pass(REAL, OTHER), rel=0, abs=rounding(REAL, OTHER))


def test_summing_the_moments_over_ranks_is_wrong():
    # negative control: count, mean and scatter added up, as for a state declared "sum"
    halves = [fed(REAL[:30], OTHER[:20]), fed(REAL[30:], OTHER[20:])]
    summed = FrechetDistance(num_features=WIDTH)
    summed.real = halves[0].real + halves[1].real
    summed.other = halves[0].other + halves[1].other
    summed._update_count = 2
    right = one_pass(REAL, OTHER)
    assert abs(float(summed.compute()) - right) > 0.5 * right


def test_averaging_the_distances_of_ranks_is_wrong():
    parts = [float(fed(REAL[:8], OTHER[:40]).compute()), float(fed(REAL[8:], OTHER[40:]).compute())]
    right = one_pass(REAL, OTHER)
    assert abs(sum(parts) / 2 - right) > 0.05 * right


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 40), max_size=6), st.floats(-50, 50))
def test_any_partition_and_order_of_updates_is_exact(seed, cuts, shift):
    rng = np.random.default_rng(seed)
    real, other = rng.normal(size=(40, 3)) + shift, 2 * rng.normal(size=(30, 3))
    edges = [0, *sorted(cuts), 40]
    parts = []
    for start, end in itertools.pairwise(edges):
        part = FrechetDistance(num_features=3)
        part.update(torch.from_numpy(real[start:end]), real=True)
        parts.append(part)
    metric, *further = parts
    for part in further:
        metric.merge_state(part)
    metric.update(torch.from_numpy(other), real=False)
    assert float(metric.compute()) == pytest.approx(one_pass(real, other), rel=0, abs=rounding(real, other))


def test_closed_form_for_diagonal_gaussians():
    # ±s around a mean m, once each, along every axis: the covariance is diagonal with 2 s² / (2 d - 1)
    def around(mean, spread):
        axes = np.diag(spread)
        return np.concatenate([mean + axes, mean - axes])

    mean_1, mean_2 = np.array([1.0, -2.0, 0.5]), np.array([0.0, 1.0, 2.0])
    spread_1, spread_2 = np.array([1.0, 2.0, 3.0]), np.array([4.0, 1.0, 0.25])
    real, other = around(mean_1, spread_1), around(mean_2, spread_2)
    scale = np.sqrt(2 / (2 * 3 - 1))
    right = np.sum((mean_1 - mean_2) ** 2) + np.sum((scale * (spread_1 - spread_2)) ** 2)
    assert float(fed(real, other).compute()) == pytest.approx(right, rel=0, abs=rounding(real, other))


def test_equal_streams_are_at_distance_zero():
    assert 0 <= float(fed(REAL, REAL).compute()) <= rounding(REAL, REAL)


def test_low_precision_features_are_summed_in_double_precision():
    # the mean of 2**12 values near 1000 in float16 would be off by far more than the spread
    features = (1000 + torch.randn(4096, 2, generator=torch.Generator().manual_seed(0))).half()
    metric = FrechetDistance(num_features=2)
    metric.update(features, real=True)
    metric.update(features.double() + 1, real=False)
    # the means are 1 apart along both axes, the covariances are equal
    bound = rounding(features.double().numpy(), features.double().numpy() + 1)
    assert float(metric.compute()) == pytest.approx(2.0, rel=0, abs=bound)


def test_an_update_without_examples_changes_nothing():
    metric = fed(REAL, OTHER)
    before = metric.real.clone()
    metric.update(torch.empty(0, WIDTH), real=True)
    assert torch.equal(metric.real, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_feature_that_is_not_finite_makes_the_distance_nan(bad):
    metric = FrechetDistance(WIDTH)
    metric.update(torch.tensor(REAL), real=True)
    metric.update(torch.tensor(OTHER), real=False)
    assert metric.compute().isfinite()
    metric.update(torch.full((1, WIDTH), bad), real=False)
    assert metric.compute().isnan()


def test_too_few_examples_are_refused_with_the_count_and_the_stream():
    metric = fed(REAL, OTHER[:1])
    with pytest.raises(DataError, match="the other stream has 1"):
        metric.compute()


@pytest.mark.parametrize("shape", [(5, WIDTH + 1), (WIDTH,), (2, WIDTH, 1)])
def test_features_of_another_size_are_refused_with_both_sizes(shape):
    with pytest.raises(ConfigError, match=rf"num_features is {WIDTH} .*\({shape[0]},"):
        FrechetDistance(num_features=WIDTH).update(torch.zeros(shape), real=True)


@pytest.mark.parametrize("num_features", [0, -1, 2.5, True])
def test_an_impossible_number_of_features_is_refused(num_features):
    with pytest.raises(ConfigError, match="num_features is"):
        FrechetDistance(num_features=num_features)
