"""Learning: series of other jobs → `Learnt`, by how well it forecasts the larger worlds of each.

The score of the experience is the density of each cell given the cells of the smaller worlds, for every
number of given cells from two on, and that of growth the mean miss: what is learnt is extrapolation, not
description. Series with a fixed batch per GPU only: what a smaller batch costs differs too much between jobs
to be learnt from few.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import gammaln

from samestep.advise.experience import Conditional, Experience
from samestep.advise.growth import Growth, Rate
from samestep.advise.learnt import Learnt
from samestep.advise.places import Floats, Places
from samestep.advise.series import Series, Stack, stacked

_START = Experience(
    second_mean=0.03, inside_mean=0.02, jump_mean=0.1, nodes_mean=0.03,
    second_variance=5e-4, inside_variance=3e-4, inside_wandering=5e-4,
    jump_variance=1e-2, nodes_variance=5e-4, nodes_wandering=7e-4,
    together_variance=0.3, noise_variance=1e-4, degrees=2.0,
)  # fmt: skip
_NAMES = tuple(vars(_START))
_Tier = Literal["inside", "nodes"]
_MEANS = 4
_UNIT = 0.02
"""Of means, so that a search moves them about as far as logarithms of variances."""
_BOUNDS = (
    [(-0.2 / _UNIT, 0.5 / _UNIT)] * _MEANS + [(np.log(1e-5), np.log(4.0))] * 8 + [(np.log(0.5), np.log(20.0))]
)
_PULL = 1e-3
"""Towards the start, where the series say nothing."""

_START_GROWTH = Growth(inside=Rate(usual=0.4, by_size=0.2), nodes=Rate(usual=0.3, by_size=0.2))


def learn(series: Sequence[Series]) -> Learnt:
    """What forecasts these series best; a source counts by the root of its series."""
    fixed = [each for each in series if each.places.is_batch_fixed and len(each.step_s) > 2]
    growth = replace(_START_GROWTH, inside=_rate(fixed, "inside"), nodes=_rate(fixed, "nodes"))
    return Learnt(experience=_experience(fixed), growth=growth)


def _experience(series: Sequence[Series]) -> Experience:
    stacks = stacked(series)
    weight = float(sum(stack.weights.sum() for stack in stacks))
    start = _encoded(_START)

    def score(values: Floats) -> float:
        experience = _decoded(values)
        total = sum(_loss(experience, stack) for stack in stacks)
        return total / weight + _PULL * float(np.sum((values - start) ** 2))

    options = {"maxiter": 60, "eps": 1e-5, "ftol": 1e-6}
    return _decoded(minimize(score, start, method="L-BFGS-B", bounds=_BOUNDS, options=options).x)


def _loss(experience: Experience, stack: Stack) -> float:
    """Minus the logarithm of the density of a forecast, on average over the forecasts of each series."""
    mean, covariance = experience.moments(stack.places)
    log_s = np.log(stack.step_s / stack.step_s[:, :1])
    total = 0.0
    for count in range(2, stack.length):
        found = Conditional.of(mean, covariance, log_s[:, :count])
        degrees = experience.degrees + count - 1
        variance = found.variance * ((experience.degrees + found.surprise) / degrees)[:, None]
        misses = log_s[:, count:] - found.log_s
        density = (
            gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - 0.5 * np.log(degrees * np.pi * variance)
            - (degrees + 1) / 2 * np.log1p(misses**2 / variance / degrees)
        )  # fmt: skip
        total -= float((stack.weights[:, None] * density).sum())
    return total / stack.num_forecasts


def _rate(series: Sequence[Series], tier: _Tier) -> Rate:
    """By the mean miss: odd series count no more than by how far off they are."""
    stacks = stacked(
        [
            each
            for each in series
            if any(_is_told(each.places, count, tier).any() for count in range(2, len(each.step_s)))
        ]
    )

    def score(values: Floats) -> float:
        growth = replace(_START_GROWTH, **{tier: Rate(usual=float(values[0]), by_size=float(values[1]))})
        return sum(float(stack.weights @ _misses(growth, tier, stack)) for stack in stacks)

    start: Rate = getattr(_START_GROWTH, tier)
    usual, by_size = minimize(score, [start.usual, start.by_size], method="Nelder-Mead").x
    return Rate(usual=float(usual), by_size=float(by_size))


def _misses(growth: Growth, tier: _Tier, stack: Stack) -> Floats:
    """Of each series, on average over its forecasts in a tier."""
    total, num_told = np.zeros((2, len(stack.weights)))
    for count in range(2, stack.length):
        cells, asked = stack.places[..., :count], stack.places[..., count:]
        found = growth.step_s(cells, stack.step_s[:, :count], asked, is_in_seconds=stack.is_in_seconds)
        is_told = _is_told(stack.places, count, tier)
        total += np.sum(np.abs(np.log(found / stack.step_s[:, count:])) * is_told, axis=-1)
        num_told += is_told.sum(axis=-1)
    return np.asarray(total / np.maximum(num_told, 1))


def _is_told(places: Places, count: int, tier: _Tier) -> NDArray[np.bool_]:
    """What the first cells tell of the growth in a tier; the first step out of a node is no growth."""
    asked = places[..., count:]
    if tier == "inside":
        return np.asarray(asked.nodes == 1)
    return np.asarray((asked.nodes > 1) & (places.nodes[..., count - 1 : count] > 1))


def _encoded(experience: Experience) -> Floats:
    values = np.array([getattr(experience, name) for name in _NAMES])
    return np.concatenate([values[:_MEANS] / _UNIT, np.log(values[_MEANS:])])


def _decoded(values: Floats) -> Experience:
    natural = np.concatenate([values[:_MEANS] * _UNIT, np.exp(values[_MEANS:])])
    return Experience(**dict(zip(_NAMES, map(float, natural), strict=True)))
