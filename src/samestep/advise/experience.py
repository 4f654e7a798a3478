"""Experience: what the overhead of other jobs was like, as a prior for the job at hand.

The logarithm of a step's time is that of its computing, plus an overhead that is a Gaussian process over
places: a part as soon as there is a second GPU, one for each doubling within a node, a jump to several nodes,
one for each doubling of nodes, each with a mean and a spread over jobs, and wandering between world sizes.
All spreads of a job are wide or narrow together (an inverse gamma, so forecasts are Student's t). The means
and spreads are learnt from public tables (`learning`); this module only applies them.

Where the examples per GPU differ between places, the computing of m examples in k turns is `m + (r·k + s)·M`,
with M the most examples that a turn of a cell has, and r and s fixed parts of a turn and of a step that no
batch makes smaller. They are summed over, by how usual they are and how well the cells agree with them. With
one turn a step they are the same. The overhead e^x − 1 beside that computing is larger for smaller turns, by
a factor: what is learnt, and conditioned on the cells, is the x of the largest turn.
"""

from dataclasses import dataclass

import numpy as np

from samestep.advise.places import Floats, Places

_FIXED = np.array([0.0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5])
_USUAL = 0.4
"""A fixed part that is half as likely as none; cells of different batches tell more, and outweigh it."""
_SMALLER = 0.5
"""Overhead beside the computing grows with this power of M over a turn's examples: between all of it hidden
behind computing and none. Who keeps the examples of a turn and takes fewer turns has no more of it."""


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

    def moments(self, at: Places, noise: Floats | float = 1.0) -> tuple[Floats, Floats]:
        """Mean and covariance of the overhead over the last axis of `at`; `noise` is a factor on its own."""
        has_second, has_jump = (at.gpus > 1).astype(float), (at.nodes > 1).astype(float)
        inside, nodes = np.log2(at.gpus_per_node), np.log2(at.nodes)
        mean = (
            self.second_mean * has_second + self.inside_mean * inside
            + self.jump_mean * has_jump + self.nodes_mean * nodes
        )  # fmt: skip
        covariance = (
            self.together_variance * _outer(mean)
            + self.second_variance * _outer(has_second)
            + self.inside_variance * _outer(inside)
            + self.inside_wandering * _least(inside)
            + self.jump_variance * _outer(has_jump)
            + self.nodes_variance * _outer(nodes)
            + self.nodes_wandering * _least(nodes)
        )
        return mean, covariance + self.noise_variance * noise * np.eye(at.gpus.shape[-1])


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
    both, count = places + at, len(places)
    more = np.maximum(places.at_once.max() / both.at_once, 1.0) ** _SMALLER
    mean, covariance = experience.moments(both, more**-2)
    computing, likely = _computing(both, places.at_once.max())
    # how fast the job is by itself: as if the overhead of its first cell were the usual one
    alone = np.log(step_s[0]) - computing[:, :1] - _grown(mean[:1], more[:1])
    seen = np.log(step_s) - computing[:, :count] - alone
    overhead = _shrunk(seen, more[:count])
    degrees = experience.degrees + count - 1
    found = Conditional.of(mean, covariance, overhead)
    log_weights = (
        np.log(likely) - degrees / 2 * np.log1p(found.surprise / experience.degrees)
        # from a density of overheads to one of times
        + np.sum(np.where(seen > 0, seen - overhead - np.log(more[:count]), 0.0), axis=1)
    )  # fmt: skip
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    grown = _grown(found.log_s, more[count:])
    slope = np.where(found.log_s > 0, more[count:] * np.exp(found.log_s - grown), 1.0)
    scale_squared = found.variance * slope**2 * ((experience.degrees + found.surprise) / degrees)[:, None]
    by_guess = alone + computing[:, count:] + grown
    log_s = weights @ by_guess
    scale = np.sqrt(weights @ (scale_squared + (by_guess - log_s) ** 2))
    return Forecast(log_s, scale, degrees)


def _grown(overhead: Floats, more: Floats) -> Floats:
    """The overhead of a turn that is smaller: its part beside the computing is `more` times as large."""
    return np.where(overhead > 0, np.log1p(np.expm1(np.maximum(overhead, 0.0)) * more), overhead)


def _shrunk(overhead: Floats, more: Floats) -> Floats:
    """What it is of the largest turn: the inverse of `_grown`."""
    return np.where(overhead > 0, np.log1p(np.expm1(np.maximum(overhead, 0.0)) / more), overhead)


def _computing(at: Places, unit: float) -> tuple[Floats, Floats]:
    """Logarithms of the computing of a step, a row for each guess of its fixed parts, and how likely each is.

    A fixed part is told in units of the computing of `unit` examples.
    """
    if at.is_batch_fixed and at.is_at_once_fixed:
        return np.zeros((1, len(at))), np.ones(1)
    of_turn, of_step = np.meshgrid(_FIXED, _FIXED if at.turns.max() > 1 else _FIXED[:1])
    fixed = of_turn.reshape(-1, 1) * at.turns + of_step.reshape(-1, 1)
    likely = 1 / (1 + of_turn.ravel() / _USUAL) / (1 + of_step.ravel() / _USUAL)
    return np.log(at.batch_per_gpu / unit + fixed), likely


def _outer(values: Floats) -> Floats:
    return np.asarray(values[..., :, None] * values[..., None, :])


def _least(values: Floats) -> Floats:
    return np.minimum(values[..., :, None], values[..., None, :])
