"""Experience: what the overhead of other jobs was like, as a prior for the job at hand.

The logarithm of a step's time is that of its computing, plus an overhead that is a Gaussian process over
places: a part as soon as there is a second GPU, one for each doubling within a node, a jump to several nodes,
one for each doubling of nodes, each with a mean and a spread over jobs, and wandering between world sizes.
All spreads of a job are wide or narrow together (an inverse gamma, so forecasts are Student's t). The means
and spreads are learnt from public tables (`learning`); this module only applies them.

Where the examples per GPU differ between places, the computing of m examples in k turns is `m + (r·k + s)·M`,
with M the most examples that a turn has, and r and s fixed parts of a turn and of a step that no batch makes
smaller. They are summed over, by how well the cells agree with them. With one turn a step they are the same.
"""

from dataclasses import dataclass

import numpy as np

from samestep.advise.places import Floats, Places

_FIXED = np.array([0.0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5])
_SMALLER = 0.5
"""Overhead grows with this power of M over a turn's examples: between all of it hidden behind computing and
none. Who keeps the examples of a turn and takes fewer turns has no more of it."""


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Means and variances of the overhead, as natural logarithms of the step's time."""

    second_mean: float
    inside_mean: float
    jump_mean: float
    nodes_mean: float
    second_variance: float
    inside_variance: float
    inside_wandering: float
    jump_variance: float
    nodes_variance: float
    nodes_wandering: float
    together_variance: float
    """Of a factor on all means: who loses more than others in one place does so in another."""
    noise_variance: float
    degrees: float
    """Of freedom, of how wide spreads are."""

    def moments(self, at: Places, gain: Floats | float = 1.0) -> tuple[Floats, Floats]:
        """Mean and covariance of the overhead over the last axis of `at`; `gain` is a factor on both."""
        has_second, has_jump = (at.gpus > 1).astype(float), (at.nodes > 1).astype(float)
        inside, nodes = np.log2(at.gpus_per_node), np.log2(at.nodes)
        mean = (
            self.second_mean * has_second + self.inside_mean * inside
            + self.jump_mean * has_jump + self.nodes_mean * nodes
        ) * gain  # fmt: skip
        covariance = self.together_variance * _outer(mean) + _outer(np.ones_like(inside) * gain) * (
            self.second_variance * _outer(has_second)
            + self.inside_variance * _outer(inside)
            + self.inside_wandering * _least(inside)
            + self.jump_variance * _outer(has_jump)
            + self.nodes_variance * _outer(nodes)
            + self.nodes_wandering * _least(nodes)
        )
        return mean, covariance + self.noise_variance * np.eye(at.gpus.shape[-1])


@dataclass(frozen=True)
class Forecast:
    """Student's t distributions of the logarithm of the step's time."""

    log_s: Floats
    scale: Floats
    degrees: float


@dataclass(frozen=True)
class Conditional:
    """The rest of a Gaussian process given its first values; leading axes are those of many of them.

    Everything is relative to the first value, since nothing is known of how fast a job is by itself.
    """

    log_s: Floats
    variance: Floats
    surprise: Floats
    """Squared Mahalanobis distance of what was given."""

    @classmethod
    def of(cls, mean: Floats, covariance: Floats, given: Floats) -> "Conditional":
        count = given.shape[-1] - 1
        mean = mean[..., 1:] - mean[..., :1]
        covariance = (
            covariance[..., 1:, 1:]
            - covariance[..., 1:, :1]
            - covariance[..., :1, 1:]
            + covariance[..., :1, :1]
        )
        misses = given[..., 1:] - given[..., :1] - mean[..., :count]
        inverse = np.linalg.inv(covariance[..., :count, :count])
        gain = covariance[..., count:, :count] @ inverse
        rest = np.diagonal(covariance[..., count:, count:], axis1=-2, axis2=-1)
        return cls(
            given[..., :1] + mean[..., count:] + (gain @ misses[..., None])[..., 0],
            rest - np.sum(gain * covariance[..., count:, :count], axis=-1),
            np.asarray(np.einsum("...i,...ij,...j->...", misses, inverse, misses)),
        )


def forecast(experience: Experience, places: Places, step_s: Floats, at: Places) -> Forecast:
    """The steps at other places, given those that were measured."""
    both = places + at
    mean, covariance = experience.moments(both, (both.at_once.max() / both.at_once) ** _SMALLER)
    degrees = experience.degrees + len(places) - 1
    found = Conditional.of(mean + _computing(both), covariance, np.log(step_s))
    log_weights = -degrees / 2 * np.log1p(found.surprise / experience.degrees)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    scale_squared = found.variance * ((experience.degrees + found.surprise) / degrees)[:, None]
    log_s = weights @ found.log_s
    scale = np.sqrt(weights @ (scale_squared + (found.log_s - log_s) ** 2))
    return Forecast(log_s, scale, degrees)


def _computing(at: Places) -> Floats:
    """Logarithms of the computing of a step; a row for each guess of its fixed parts."""
    if at.is_batch_fixed and at.is_at_once_fixed:
        return np.zeros((1, len(at)))
    of_turn, of_step = np.meshgrid(_FIXED, _FIXED if at.turns.max() > 1 else _FIXED[:1])
    fixed = of_turn.reshape(-1, 1) * at.turns + of_step.reshape(-1, 1)
    return np.asarray(np.log(at.batch_per_gpu / at.at_once.max() + fixed))


def _outer(values: Floats) -> Floats:
    return np.asarray(values[..., :, None] * values[..., None, :])


def _least(values: Floats) -> Floats:
    return np.minimum(values[..., :, None], values[..., None, :])
