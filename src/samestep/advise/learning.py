"""Learning: series of other jobs → `Experience`, by how well it forecasts the larger worlds of each.

The score is the density of each cell given the cells of the smaller worlds, for every number of given cells
from two on: what is learnt is extrapolation, not description. Series with a fixed batch per GPU only: what a
smaller batch costs differs too much between jobs to be learnt from few.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln

from samestep.advise.experience import Conditional, Experience
from samestep.advise.places import Floats, Places
from samestep.advise.series import Series

_START = Experience(
    second_mean=0.03, inside_mean=0.02, jump_mean=0.1, nodes_mean=0.03,
    second_variance=5e-4, inside_variance=3e-4, inside_wandering=5e-4,
    jump_variance=1e-2, nodes_variance=5e-4, nodes_wandering=7e-4,
    together_variance=0.3, noise_variance=1e-4, degrees=2.0,
)  # fmt: skip
_NAMES = tuple(vars(_START))
_MEANS = 4
_UNIT = 0.02
"""Of means, so that a search moves them about as far as logarithms of variances."""
_BOUNDS = (
    [(-0.2 / _UNIT, 0.5 / _UNIT)] * _MEANS + [(np.log(1e-5), np.log(4.0))] * 8 + [(np.log(0.5), np.log(20.0))]
)
_PULL = 1e-3
"""Towards the start, where the series say nothing."""


@dataclass(frozen=True)
class _Batch:
    """Series of one length, as arrays."""

    places: Places
    log_s: Floats
    weights: Floats


def learn(series: Sequence[Series]) -> Experience:
    """The experience that forecasts these series best; a source counts by the root of its series."""
    fixed = [each for each in series if each.places.is_batch_fixed and len(each.step_s) > 2]
    batches = _batches(fixed)
    weight = float(sum(batch.weights.sum() for batch in batches))
    start = _encoded(_START)

    def score(values: Floats) -> float:
        experience = _decoded(values)
        total = sum(_loss(experience, batch) for batch in batches)
        return total / weight + _PULL * float(np.sum((values - start) ** 2))

    options = {"maxiter": 60, "eps": 1e-5, "ftol": 1e-6}
    return _decoded(minimize(score, start, method="L-BFGS-B", bounds=_BOUNDS, options=options).x)


def _batches(series: Sequence[Series]) -> list[_Batch]:
    sources = Counter(each.source for each in series)
    by_length: dict[int, list[Series]] = defaultdict(list)
    for each in series:
        by_length[len(each.step_s)].append(each)
    return [
        _Batch(
            Places.stacked([each.places for each in alike]),
            np.stack([np.log(each.step_s / each.step_s[0]) for each in alike]),
            np.array([sources[each.source] ** -0.5 for each in alike]),
        )
        for alike in by_length.values()
    ]


def _loss(experience: Experience, batch: _Batch) -> float:
    """Minus the logarithm of the density of a forecast, on average over the forecasts of each series."""
    mean, covariance = experience.moments(batch.places)
    length = batch.log_s.shape[-1]
    total = 0.0
    for count in range(2, length):
        found = Conditional.of(mean, covariance, batch.log_s[:, :count])
        degrees = experience.degrees + count - 1
        variance = found.variance * ((experience.degrees + found.surprise) / degrees)[:, None]
        misses = batch.log_s[:, count:] - found.log_s
        density = (
            gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - 0.5 * np.log(degrees * np.pi * variance)
            - (degrees + 1) / 2 * np.log1p(misses**2 / variance / degrees)
        )  # fmt: skip
        total -= float((batch.weights[:, None] * density).sum())
    return float(total / ((length - 2) * (length - 1) / 2))


def _encoded(experience: Experience) -> Floats:
    values = np.array([getattr(experience, name) for name in _NAMES])
    return np.concatenate([values[:_MEANS] / _UNIT, np.log(values[_MEANS:])])


def _decoded(values: Floats) -> Experience:
    natural = np.concatenate([values[:_MEANS] * _UNIT, np.exp(values[_MEANS:])])
    return Experience(**dict(zip(_NAMES, map(float, natural), strict=True)))
