"""The Fréchet distance between two streams of features, exact under any partition over ranks.

Keeps count, mean and centred scatter of each stream in float64 and merges them with Chan's formula; sums of
means or of scatters are never formed. Knows nothing of the network that makes the features.
"""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from samestep.errors import ConfigError, DataError


class FrechetDistance(Metric):
    """Fréchet distance of two Gaussians fitted to real and other features: |m₁-m₂|² + tr(S₁+S₂-2(S₁S₂)^½).

    Covariances are unbiased (n-1), so each stream needs two examples. The states of both streams have one
    fixed shape; merging, with samestep or with torchmetrics, gives a state that can be updated further.
    Use `update`; `forward` would compute the distance within one batch. Eigenvalues that rounding made
    negative count as zero, which limits the accuracy to about
    `num_features · sqrt(2⁻⁵² · largest eigenvalue)` where a covariance is singular.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0

    real: Tensor
    other: Tensor

    def __init__(self, num_features: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(num_features, bool) or not isinstance(num_features, int) or num_features < 1:
            raise ConfigError(f"num_features is {num_features!r}; it must be a whole number, 1 or more.")
        self.num_features = num_features
        empty = torch.zeros(num_features + 1, num_features + 1, dtype=torch.float64)
        self.add_state("real", default=empty.clone(), dist_reduce_fx=_merge_all)
        self.add_state("other", default=empty.clone(), dist_reduce_fx=_merge_all)

    def update(self, features: Tensor, real: bool) -> None:
        """Take in features of shape (examples, num_features), of the real stream or of the other."""
        if features.dim() != 2 or features.shape[1] != self.num_features:
            raise ConfigError(
                f"num_features is {self.num_features} but the features have the shape "
                f"{tuple(features.shape)}; give a matrix of shape (examples, {self.num_features})."
            )
        moments = _moments_of(features.detach().to(self.real))
        if real:
            self.real = _merge_two(self.real, moments)
        else:
            self.other = _merge_two(self.other, moments)

    def compute(self) -> Tensor:
        """The distance over all features so far, a float64 scalar of 0 or more; nan if one is not finite."""
        for name, moments in (("real", self.real), ("other", self.other)):
            if moments[0, 0] < 2:
                raise DataError(
                    f"The Fréchet distance needs 2 or more examples of each stream, but the {name} stream "
                    f"has {int(moments[0, 0])}: update with more examples before computing it."
                )
        if not (self.real.isfinite().all() and self.other.isfinite().all()):
            return self.real.new_tensor(torch.nan)  # there are no eigenvalues to ask for
        (mean_1, covariance_1), (mean_2, covariance_2) = _gaussian(self.real), _gaussian(self.other)
        root_1 = _square_root(covariance_1)
        product = root_1 @ covariance_2 @ root_1
        shared = torch.linalg.eigvalsh((product + product.T) / 2).clamp(min=0).sqrt().sum()
        spread = covariance_1.trace() + covariance_2.trace() - 2 * shared
        distance: Tensor = (mean_1 - mean_2).square().sum() + spread
        return distance.clamp(min=0)


# The moments of a stream are one symmetric matrix,   ⎡ n  mᵀ ⎤    n: count, m: mean,
# so that they travel and merge as one state:         ⎣ m  S  ⎦    S: scatter about the mean.


def _moments_of(features: Tensor) -> Tensor:
    count, width = features.shape
    moments = features.new_zeros(width + 1, width + 1)
    if count == 0:
        return moments
    mean = features.mean(dim=0)
    centred = features - mean
    moments[0, 0] = count
    moments[0, 1:] = moments[1:, 0] = mean
    moments[1:, 1:] = centred.T @ centred
    return moments


def _merge_two(a: Tensor, b: Tensor) -> Tensor:
    """The moments of both streams' examples together.

    n = nₐ + n_b;  d = m_b - mₐ;  m = mₐ + d·n_b/n;  S = Sₐ + S_b + d dᵀ·nₐ·n_b/n
    (Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances, 1979)
    """
    count_a, count_b = a[0, 0], b[0, 0]
    if count_a == 0 or count_b == 0:
        return (b if count_a == 0 else a).clone()
    count = count_a + count_b
    apart = b[0, 1:] - a[0, 1:]
    merged = torch.empty_like(a)
    merged[0, 0] = count
    merged[0, 1:] = merged[1:, 0] = a[0, 1:] + apart * (count_b / count)
    merged[1:, 1:] = a[1:, 1:] + b[1:, 1:] + torch.outer(apart, apart) * (count_a * count_b / count)
    return merged


def _merge_all(stacked: Tensor) -> Tensor:
    merged = stacked[0]
    for moments in stacked[1:]:
        merged = _merge_two(merged, moments)
    return merged


def _gaussian(moments: Tensor) -> tuple[Tensor, Tensor]:
    return moments[0, 1:], moments[1:, 1:] / (moments[0, 0] - 1)


def _square_root(matrix: Tensor) -> Tensor:
    """The symmetric square root of a covariance; eigenvalues that rounding made negative count as zero."""
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return root
