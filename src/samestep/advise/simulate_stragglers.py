"""The slowest of N ranks: how its time is spread, without drawing a random number.

The time of a rank varies about its mean by a factor that is log-normal with mean 1 and the standard deviation
`noise`; ranks are independent. The largest of N such factors has the distribution function Φ(z)^N at
exp(σz − σ²/2). It is put on a fixed grid of z: the values are the same for every N and only their weights
differ, so that more ranks are never a shorter wait. Knows nothing of what ranks do.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SPACING = 1 / 8
_LOW, _HIGH = -7.0, 9.0
"""In standard deviations: the largest of a million normal draws is above 9 once in 10 ** 13 times."""


def slowest(noise: float, gpus: Ints) -> tuple[Floats, Floats]:
    """Factors by which the slowest rank may be slower than the mean, and the weight of each (rows) for each
    number of GPUs (columns). With one GPU the mean factor is 1."""
    if noise == 0.0:
        return np.ones(1), np.ones((1, len(gpus)))
    sigma = math.sqrt(math.log1p(noise**2))
    z = np.arange(_LOW, _HIGH + _SPACING / 2, _SPACING)
    # a cell's mass stands in its middle, so a mean of z has no error and one of exp(σz) has (σ/8)²/24,
    # which dividing by the mean of one rank takes away
    factors = np.exp(sigma * z)
    factors /= factors @ _weights(z, np.ones(1, dtype=np.int64))[:, 0]
    return factors, _weights(z, gpus)


def _weights(z: Floats, gpus: Ints) -> Floats:
    """The mass of each cell of the grid; the outermost cells have no end."""
    inner = np.array([_log_normal_cdf(edge) for edge in z[:-1] + _SPACING / 2])
    below = np.exp(inner[:, np.newaxis] * gpus)
    ends = np.ones((1, len(gpus)))
    return np.diff(np.concatenate([0 * ends, below, ends]), axis=0)


def _log_normal_cdf(z: float) -> float:
    """log Φ(z), exact in both tails."""
    if z < 0:
        return math.log(0.5 * math.erfc(-z / math.sqrt(2)))
    return math.log1p(-0.5 * math.erfc(z / math.sqrt(2)))
