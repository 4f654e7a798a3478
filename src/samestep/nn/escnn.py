"""Synchronised statistics for the norm layers of ESCNN, known by name and never imported from here.

ESCNN takes no gradient through its batch statistics, so only the numbers are exchanged. Written against
escnn 1.0.11: its classes are checked for the methods that are replaced here, and a version without them is
left to be reported as not synchronised. `InnerBatchNorm` holds torch's own layers and needs nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from samestep.nn.adopt import mix_in
from samestep.nn.moments import Moments, moments
from samestep.world import current

__all__ = ["CONVERTERS"]

_PACKAGE = "escnn.nn.modules.batchnormalization"


class _Synchronised(nn.Module):
    samestep_synchronised = True
    samestep_exchanges = 0

    def _is_alone(self) -> bool:
        world = current()
        return world is None or not world.shares_statistics or not self.training

    @torch.no_grad()
    def _global(self, values: Tensor, dims: tuple[int, ...]) -> Moments:
        self.samestep_exchanges += 1
        return moments(values, dims)


class _IID(_Synchronised):
    """Fields with a scalar covariance: one variance a field, means of the trivial parts only."""

    def _estimate_stats(self, slice: Tensor, name: str) -> tuple[Tensor | None, Tensor]:
        inherited: Any = super()
        if self._is_alone():
            return inherited._estimate_stats(slice, name)  # type: ignore[no-any-return]
        mean, var, count = self._global(slice, (0, *range(3, slice.dim())))
        layer: Any = self
        means = None
        if layer._has_trivial[name]:
            means = mean @ getattr(self, f"{layer._escape_name(name)}_avg").T
        # the layer centres with a constant per channel first, which leaves each channel's variance alone
        return means, (var * (count / (count - 1))).mean(dim=1, keepdim=True)


class _GNorm(_Synchronised):
    """One variance an irrep: about the mean for trivial channels, about zero for the others."""

    def _compute_statistics(self, t: Tensor, name: str) -> tuple[Tensor, Tensor]:
        inherited: Any = super()
        if self._is_alone():
            return inherited._compute_statistics(t, name)  # type: ignore[no-any-return]
        mean, var, count = self._global(t, (0, *range(3, t.dim())))
        layer: Any = self
        trivial = layer._trivial_idxs[name]
        about = var + mean.square()
        about[:, trivial] = var[:, trivial]
        vars = about @ getattr(self, f"vars_aggregator_{layer._escape_name(name)}")
        return mean[:, trivial], vars * _bessel(count)


class _Norm(_Synchronised):
    """Fields of mean zero: the variance is the mean of the squared norms.

    The statistics are computed inside of ESCNN's `forward`, which then normalises with the running variance
    that it just updated. So the update happens here, and `forward` runs as it does in evaluation.
    """

    def forward(self, input: Any) -> Any:
        if self._is_alone():
            return super().forward(input)
        layer: Any = self
        layer.num_batches_tracked += 1
        momentum = layer.momentum
        factor = 1.0 / layer.num_batches_tracked.item() if momentum is None else momentum
        for key in layer._order:
            mean, count = self._squared_norm(input.tensor, key)
            running = getattr(self, f"{key}_running_var")
            running.mul_(1 - factor).add_((mean * _bessel(count)).view_as(running), alpha=factor)
        self.training = False
        try:
            return super().forward(input)
        finally:
            self.training = True

    def _squared_norm(self, x: Tensor, key: Any) -> tuple[Tensor, Tensor]:
        """The mean square of a component of each field of the kind `key`, and the number of fields seen."""
        layer: Any = self
        size, part = key if isinstance(key, tuple) else (key, key)
        indices = getattr(self, f"{key}_indices")
        fields = x.detach()[:, slice(*indices.tolist()) if layer._contiguous[key] else indices]
        fields = fields.reshape(len(x), layer._nfields[key], size // part, part, -1)
        mean, _, count = self._global(fields.square().sum(3), (0, 2, 3))
        return mean / part, count


def _bessel(count: Tensor) -> Tensor:
    return torch.where(count > 1, count / (count - 1), 1.0)


def _converter(name: str, mixin: type, needs: str) -> Callable[[nn.Module], None]:
    def convert(module: nn.Module) -> None:
        if not hasattr(type(module), needs):
            return
        mix_in(module, name, mixin)
        layer: Any = module
        if hasattr(layer, "_sizes"):
            # kinds of fields come in the order of a set of strings, which differs from process to process:
            # ranks would exchange the statistics of one kind for those of another
            layer._sizes = sorted(layer._sizes)

    return convert


CONVERTERS = {
    (name := f"{_PACKAGE}.{place}"): _converter(name, mixin, needs)
    for place, mixin, needs in (
        ("iid._IIDBatchNorm", _IID, "_estimate_stats"),
        ("gnorm.GNormBatchNorm", _GNorm, "_compute_statistics"),
        ("norm.NormBatchNorm", _Norm, "forward"),
        ("induced_norm.InducedNormBatchNorm", _Norm, "forward"),
    )
}
