"""Noise: the gradient noise scale, and how many more examples a larger batch needs because of it.

The gradient of one example is G on average, and Σ is the covariance of the examples' gradients. The noise
scale is tr(Σ) / |G|², a number of examples (McCandlish, Kaplan, Amodei et al. 2018, "An empirical model of
large-batch training"). A batch far below it is mostly noise, and twice the batch needs half the steps; a
batch far above it is mostly G, and twice the batch buys nothing.

Knows squared norms and counts, and nothing of where they come from: `samestep.scale.noise` finds them in what
a probe observed. In a notebook, with norms of one's own:

    steps = [StepNorms(num_examples=(16, 16), square_norms=(0.52, 0.49), whole_square_norm=0.31), ...]
    noise = noise_scale(steps)
    noise.value, noise.low, noise.high
    examples_factor(512, noise.value, than=64)   # how many times the examples of a batch of 64

What it cannot know: G and Σ are those of the steps that were seen, and G shrinks as training goes on, so
that the noise scale grows. The relation to steps is that of SGD with a learning rate that suits the batch.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from samestep.errors import ConfigError

Floats = NDArray[np.float64]

LEVEL = 0.95
FEWEST_STEPS = 6
"""Of fewer, the scatter is not known well enough for an interval."""


@dataclass(frozen=True, kw_only=True)
class StepNorms:
    """The batch of one step in parts that share no example: how long the gradients of parts and whole are.

    `square_norms` are |g|² of each part's mean gradient over its `num_examples`, and `whole_square_norm` that
    of the sum of the parts' gradients times their `weights`. Weights add up to 1. Without any they are the
    parts of the examples, which makes the whole the mean gradient of the batch; ranks whose means are
    averaged, however many examples each has, all have the weight 1/N.
    """

    num_examples: tuple[float, ...]
    square_norms: tuple[float, ...]
    whole_square_norm: float
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        counts, norms = self.num_examples, self.square_norms
        if len(counts) < 2 or len(counts) != len(norms):
            raise ConfigError(
                f"A step was given {len(counts)} counts of examples and {len(norms)} squared norms; noise is "
                "told from at least two parts of a batch, with a count and a norm each."
            )
        if not all(count > 0 and math.isfinite(count) for count in counts):
            raise ConfigError(f"Parts of a step have {counts} examples; leave out the parts that have none.")
        if not all(norm >= 0 and math.isfinite(norm) for norm in (*norms, self.whole_square_norm)):
            raise ConfigError(
                f"The squared norms of a step are {norms}, and {self.whole_square_norm} of the whole; they "
                "must be finite and not negative. Leave out steps whose gradients are not finite."
            )
        given = self.weights
        if given is not None and (len(given) != len(counts) or not math.isclose(sum(given), 1, rel_tol=1e-6)):
            raise ConfigError(
                f"The weights of {len(counts)} parts are {given}; give one for each, which add up to 1."
            )

    def estimates(self) -> tuple[float, float]:
        """Of tr(Σ) and |G|²; either may be far off for one step, the second even negative, but unbiased.

        With weights w and counts b, p = Σ w/b and q = Σ w²/b:
            E[Σ w |g|²] = |G|² + p tr(Σ)        E[|Σ w g|²] = |G|² + q tr(Σ)
        (McCandlish et al. 2018, appendix A.1, for parts of any size.)
        """
        counts, norms = np.asarray(self.num_examples), np.asarray(self.square_norms)
        weights = counts / counts.sum() if self.weights is None else np.asarray(self.weights)
        p, q = float((weights / counts).sum()), float((weights**2 / counts).sum())
        small, whole = float((weights * norms).sum()), self.whole_square_norm
        return (small - whole) / (p - q), (p * whole - q * small) / (p - q)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise scale in examples, between `low` and `high` nineteen times out of twenty.

    `value` and `high` are None if it cannot be told, and `reason` says why; `low` may be known even then.
    """

    value: float | None
    low: float | None
    high: float | None
    num_steps: int
    trace: float | None = None
    """tr(Σ), the mean over steps."""
    square_gradient: float | None = None
    """|G|², the mean over steps."""
    reason: str = ""

    @property
    def is_known(self) -> bool:
        return self.value is not None


def noise_scale(steps: Iterable[StepNorms]) -> Noise:
    """The noise scale of steps that followed each other: mean tr(Σ) over mean |G|².

    A mean of ratios would be biased, and without limit where a step's |G|² comes out near 0. The interval is
    Fieller's (1954) for a ratio of means: it has no upper end where |G|² is not surely above 0.

    Steps draw other examples, so that their errors do not go together even though G and Σ change slowly from
    step to step. So the scatter is taken from neighbours, by half the mean square of their differences (von
    Neumann 1941), in which a slow change does not count; any other change makes the interval wider.
    """
    found = np.array([step.estimates() for step in steps], dtype=np.float64).reshape(-1, 2)
    count = len(found)
    if count < FEWEST_STEPS:
        return Noise(
            value=None,
            low=None,
            high=None,
            num_steps=count,
            reason=f"{count} steps have gradients of several parts; at least {FEWEST_STEPS} are needed",
        )
    trace, square = (float(mean) for mean in found.mean(axis=0))
    differences = np.diff(found, axis=0)
    covariance = differences.T @ differences / (2 * (count - 1) * count)
    # degrees of freedom of a mean square of differences of neighbours
    quantile = _t_quantile((1 + LEVEL) / 2, 2 * (count - 1) ** 2 / (3 * count - 4))
    low, high = _fieller(trace, square, quantile**2 * covariance)
    if high is None:
        reason = f"over {count} steps, the gradient itself cannot be told from its noise; watch more steps"
        return Noise(
            value=None,
            low=low,
            high=None,
            num_steps=count,
            trace=trace,
            square_gradient=square,
            reason=reason,
        )
    return Noise(
        value=trace / square, low=low, high=high, num_steps=count, trace=trace, square_gradient=square
    )


def examples_factor(batch_size: float, noise_scale: float, *, than: float = 0.0) -> float:
    """How many times the examples of batches of `than` training takes with batches of `batch_size`.

    To the same loss: E = E_min (1 + B / B_noise). Without `than`, it is compared with the smallest batches,
    which need fewest.
    """
    _check(batch_size, noise_scale)
    if math.isinf(noise_scale):
        return 1.0
    if than < 0 or noise_scale + than == 0:
        raise ConfigError(
            f"Batches of {batch_size:g} were to be compared with batches of {than:g} at a noise scale of "
            f"{noise_scale:g}; name a batch of at least one example."
        )
    return (noise_scale + batch_size) / (noise_scale + than)


def steps_factor(batch_size: float, noise_scale: float, *, than: float = math.inf) -> float:
    """How many times the steps of batches of `than` training takes with batches of `batch_size`.

    To the same loss: S = S_min (1 + B_noise / B). Without `than`, it is compared with the largest batches,
    which need fewest.
    """
    _check(batch_size, noise_scale)
    if math.isinf(than):
        return 1.0 + noise_scale / batch_size
    return examples_factor(batch_size, noise_scale, than=than) * than / batch_size


def _check(batch_size: float, noise_scale: float) -> None:
    if not (batch_size > 0 and math.isfinite(batch_size)) or not noise_scale >= 0:
        raise ConfigError(
            f"A batch of {batch_size:g} and a noise scale of {noise_scale:g} examples were given; a batch "
            "has at least one example, and a noise scale is not negative."
        )


def _fieller(above: float, below: float, covariance: Floats) -> tuple[float | None, float | None]:
    """The ends of all ratios r >= 0 with (above − r · below)² <= variance of that, as far as there are any.

    `covariance` is that of both, times the square of the quantile. There is no upper end where `below` may
    be 0, and neither end where it is surely negative.
    """
    (xx, xy), (_, yy) = covariance.tolist()
    a, b, c = below**2 - yy, above * below - xy, above**2 - xx
    root = math.sqrt(max(0.0, b * b - a * c))
    if a > 0:
        return (max(0.0, (b - root) / a), (b + root) / a) if below > 0 else (None, None)
    if c <= 0:
        return 0.0, None
    # a r² − 2 b r + c has one root above 0, from which on it is negative
    return (c / (b + root) if b + root > 0 else None), None


def _t_quantile(level: float, freedom: float) -> float:
    """Student's t, by its expansion about the normal (Abramowitz and Stegun 26.7.5); 0.5 % off at 4."""
    z = NormalDist().inv_cdf(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))
