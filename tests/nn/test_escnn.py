"""ESCNN's norm layers, by stand-ins with the attributes, methods and arithmetic that theirs have.

The stand-ins live in modules of ESCNN's names, because that is how the real ones are found.
"""

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from shares import generated, take
from torch import Tensor, nn

import worlds
from samestep.nn import synchronise
from samestep.world import World

PACKAGE = "escnn.nn.modules.batchnormalization"


class GeometricTensor:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _FieldNorm(nn.Module):
    momentum: float | None = 0.1
    eps = 1e-5

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def _escape_name(self, name: str) -> str:
        return name.replace(".", "^")

    def _factor(self) -> float:
        self.num_batches_tracked += 1
        return 1.0 / self.num_batches_tracked.item() if self.momentum is None else self.momentum


class _IIDBatchNorm(_FieldNorm):
    """Two fields of size 2, of which the first component is trivial, and two of size 1, of which none is."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes = [("a.b", 2), ("c", 1)]
        self._has_trivial = {"a.b": True, "c": False}
        self.register_buffer("a^b_avg", torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double())
        self.register_buffer("a^b_running_mean", torch.zeros(2, 2).double())
        for name, _ in self._sizes:
            self.register_buffer(f"{self._escape_name(name)}_running_var", torch.ones(2, 1).double())

    def _estimate_stats(self, slice: Tensor, name: str) -> tuple[Tensor | None, Tensor]:
        axes = (0, *range(3, slice.dim()))
        means, centered = None, slice
        if self._has_trivial[name]:
            projection = getattr(self, f"{self._escape_name(name)}_avg")
            mean = slice.mean(dim=axes, keepdim=True).detach()
            means = torch.einsum("ij,bcj...->bci...", projection, mean)
            centered = slice - means
            means = means.reshape(2, 2)
        return means, centered.var(dim=axes, unbiased=True).mean(dim=1, keepdim=True).detach()

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        output = torch.empty_like(input.tensor)
        factor = self._factor()
        for name, size in self._sizes:
            place = slice(0, 4) if name == "a.b" else slice(4, 6)
            x = input.tensor[:, place].reshape(len(output), 2, size, -1)
            means, vars = self._estimate_stats(x, name)
            getattr(self, f"{self._escape_name(name)}_running_var").mul_(1 - factor).add_(factor * vars)
            if means is not None:
                getattr(self, f"{self._escape_name(name)}_running_mean").mul_(1 - factor).add_(factor * means)
                x = x - means.view(1, 2, size, 1)
            x = x / (vars + self.eps).sqrt().view(1, 2, 1, 1)
            output[:, place] = x.reshape(len(output), 2 * size, -1)
        return GeometricTensor(output)


class IIDBatchNorm2d(_IIDBatchNorm):
    pass


class GNormBatchNorm(_FieldNorm):
    """Two fields of a trivial irrep and one of size 2."""

    def __init__(self) -> None:
        super().__init__()
        self._trivial_idxs = {"a.b": torch.tensor([0])}
        aggregator = torch.tensor([[1.0, 0.0], [0.0, 0.5], [0.0, 0.5]]).double()
        self.register_buffer("vars_aggregator_a^b", aggregator)
        self.register_buffer("a^b_running_mean", torch.zeros(2, 1).double())
        self.register_buffer("a^b_running_var", torch.ones(2, 2).double())

    def _compute_statistics(self, t: Tensor, name: str) -> tuple[Tensor, Tensor]:
        trivial = self._trivial_idxs[name]
        t = t.flatten(3)
        n = t.shape[0] * t.shape[3]
        means = t[:, :, trivial].mean(dim=(0, 3)).detach()
        vars = (t**2).mean(dim=(0, 3)).detach()
        vars[:, trivial] -= means**2
        vars = torch.einsum("io,ci->co", (getattr(self, f"vars_aggregator_{self._escape_name(name)}"), vars))
        return means, vars * (n / (n - 1) if n > 1 else 1.0)

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        x = input.tensor.view(len(input.tensor), 2, 3, -1)
        means, vars = self._compute_statistics(x, "a.b")
        factor = self._factor()
        getattr(self, "a^b_running_mean").mul_(1 - factor).add_(factor * means)
        getattr(self, "a^b_running_var").mul_(1 - factor).add_(factor * vars)
        return GeometricTensor(
            (x / (vars[:, [0, 1, 1]] + self.eps).sqrt().view(1, 2, 3, 1)).view_as(input.tensor)
        )


class NormBatchNorm(_FieldNorm):
    """Two fields of size 2 side by side, and two of size 1 around them."""

    momentum = None

    def __init__(self) -> None:
        super().__init__()
        self._order: list[Any] = [1, 2]
        self._contiguous = {1: False, 2: True}
        self._nfields = {1: 2, 2: 2}
        self._register()

    def _register(self) -> None:
        self.register_buffer(f"{self._order[0]}_indices", torch.tensor([0, 5]))
        self.register_buffer(f"{self._order[1]}_indices", torch.tensor([1, 5]))
        for key in self._order:
            self.register_buffer(f"{key}_running_var", torch.ones(1, 2, 1).double())

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        output = input.tensor.clone()
        factor = self._factor() if self.training else 0.0
        for key in self._order:
            size, part = key if isinstance(key, tuple) else (key, key)
            index = getattr(self, f"{key}_indices")
            index = slice(*index.tolist()) if self._contiguous[key] else index
            running = getattr(self, f"{key}_running_var")
            if self.training:
                squares = input.tensor.detach()[:, index].reshape(len(output), 2, size // part, part, -1) ** 2
                norms = squares.sum(3).transpose(0, 1).reshape(2, -1)
                n = norms.shape[1]
                vars = norms.mean(1).view(1, -1, 1) / part * (n / (n - 1) if n > 1 else 1)
                running *= 1 - factor
                running += factor * vars
            scale = (running + self.eps).rsqrt().expand(len(output), 2, size).reshape(len(output), -1, 1)
            output[:, index] *= scale
        return GeometricTensor(output)


class InducedNormBatchNorm(NormBatchNorm):
    """One kind of field, of two parts of size 1 each."""

    def __init__(self) -> None:
        _FieldNorm.__init__(self)
        self._order = [(1, 1), (2, 1)]
        self._contiguous = {(1, 1): False, (2, 1): True}
        self._nfields = {(1, 1): 2, (2, 1): 2}
        self._register()


class InnerBatchNorm(_FieldNorm):
    """Holds torch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("batch_norm_[2]", nn.BatchNorm3d(2, dtype=torch.float64))

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        x = input.tensor.view(len(input.tensor), 2, 2, -1, 1)
        return GeometricTensor(getattr(self, "batch_norm_[2]")(x).view_as(input.tensor))


PLACES = {
    _IIDBatchNorm: "iid",
    GNormBatchNorm: "gnorm",
    NormBatchNorm: "norm",
    InducedNormBatchNorm: "induced_norm",
}
for _kind, _place in PLACES.items():
    _kind.__module__ = f"{PACKAGE}.{_place}"
    # pickling by the pipes between ranks looks classes up where they say they live
    setattr(
        sys.modules.setdefault(_kind.__module__, types.ModuleType(_kind.__module__)), _kind.__name__, _kind
    )

LAYERS = {
    "IIDBatchNorm2d": (IIDBatchNorm2d, 6),
    "GNormBatchNorm": (GNormBatchNorm, 6),
    "NormBatchNorm": (NormBatchNorm, 6),
    "InducedNormBatchNorm": (InducedNormBatchNorm, 6),
    "InnerBatchNorm": (InnerBatchNorm, 4),
}


def on_ranks(world: World, name: str, counts: list[int], synchronised: bool = True) -> dict[str, np.ndarray]:
    kind, channels = LAYERS[name]
    layer = kind()
    keys = list(layer.state_dict())
    if world.rank % 2 and hasattr(layer, "_sizes"):
        layer._sizes.reverse()  # ESCNN takes them from a set of strings, whose order is the process's own
    if synchronised:
        assert synchronise(layer) == []
        assert isinstance(layer, kind)
        assert list(layer.state_dict()) == keys
    for seed in (1, 2):
        whole = generated(sum(counts), channels, 3, seed=seed)
        (x,) = take(world, counts, whole)
        x.requires_grad_()
        output = layer(GeometricTensor(x)).tensor
        output.backward(torch.zeros_like(output) if world.is_idle else output.detach().cos())
    assert layer.training
    found = {"output": output.detach().numpy(), "grad": x.grad.numpy()}
    if world.is_idle:
        found = {key: value[:0] for key, value in found.items()}
    buffers = {key: b.double().numpy() for key, b in layer.named_buffers() if "running" in key}
    return found | buffers


def joined(ranks: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    rows = {key: np.concatenate([rank[key] for rank in ranks]) for key in ("output", "grad")}
    return ranks[-1] | rows


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("counts", [[7, 3], [3, 3, 3, 1], [1, 0, 2]], ids=str)
def test_equals_one_rank_and_fails_unsynchronised(name: str, counts: list[int]) -> None:
    (expected,) = worlds.run(1, on_ranks, name=name, counts=[sum(counts)])
    found = joined(worlds.run(len(counts), on_ranks, name=name, counts=counts))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-12, err_msg=key)
    naive = joined(worlds.run(len(counts), on_ranks, name=name, counts=counts, synchronised=False))
    assert not np.allclose(naive["output"], expected["output"], rtol=0.05)


def test_a_version_without_the_method_is_reported() -> None:
    other = type("GNormBatchNorm", (_FieldNorm,), {"__module__": f"{PACKAGE}.gnorm"})()
    other.register_buffer("a_running_var", torch.ones(1))
    (finding,) = synchronise(other)
    assert finding.evidence["class"] == f"{PACKAGE}.gnorm.GNormBatchNorm"


def test_nothing_of_escnn_is_imported() -> None:
    assert "escnn" not in sys.modules
