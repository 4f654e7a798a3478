from typing import Any

import numpy as np
import pytest
import torch
from shares import generated, take
from torch import Tensor, nn

import worlds
from samestep.errors import ConfigError
from samestep.nn import convert, moments, register_norm, synchronise
from samestep.world import World


class HandWrittenNorm(nn.Module):
    """Batch statistics that nobody could know of."""

    def __init__(self) -> None:
        super().__init__()
        self.momentum = 0.1
        self.register_buffer("running_mean", torch.zeros(3))
        self.register_buffer("running_variance", torch.ones(3))


class CodeBook(nn.Module):
    """Vector quantisation by moving averages of what was assigned to each code."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = 0.99
        self.register_buffer("embed_avg", torch.zeros(3, 4))


class FrozenBatchNorm2d(nn.Module):
    """As in torchvision: the statistics of a finished training, which never change."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-5
        self.register_buffer("running_mean", torch.zeros(3))
        self.register_buffer("running_var", torch.ones(3))


class InputNormalisation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("std", torch.ones(3))


class PositionalEncoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.momentum = 0.9  # even with one
        self.register_buffer("pe", torch.zeros(5, 3))
        self.register_buffer("invariants", torch.zeros(5, 3))


class ProtocolNorm(nn.Module):
    """A hand-written norm that follows the protocol."""

    samestep_synchronised = True

    def __init__(self) -> None:
        super().__init__()
        self.momentum = 0.1
        self.register_buffer("running_mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        mean, var, _ = moments(x, 0)
        self.running_mean.mul_(0.9).add_(mean.detach(), alpha=0.1)
        return (x - mean) / (var + 1e-5).sqrt()


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_converters", dict(convert._converters))


def test_a_layer_with_statistics_of_its_own_is_named() -> None:
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(3, 3), HandWrittenNorm()), "codes": CodeBook()})
    first, second = synchronise(model)
    assert first.cause == second.cause == "norm-not-synchronised"
    assert first.evidence["module"] == "encoder.1"
    assert first.evidence["buffers"] == ["running_mean", "running_variance"]
    assert "encoder.1 (test_convert.HandWrittenNorm)" in first.message
    assert "samestep.nn.moments" in first.fix
    assert second.evidence["module"] == "codes"


def test_constants_are_not_accused() -> None:
    quiet = [
        FrozenBatchNorm2d(),
        InputNormalisation(),
        PositionalEncoding(),
        nn.LayerNorm(3),
        nn.GroupNorm(1, 3),
    ]
    assert synchronise(nn.Sequential(*quiet, nn.utils.spectral_norm(nn.Linear(3, 3)))) == []


def test_the_protocol_and_torchs_layers_are_not_accused() -> None:
    assert synchronise(nn.Sequential(ProtocolNorm(), nn.BatchNorm1d(3), nn.InstanceNorm1d(3))) == []


@pytest.mark.parametrize("kind", [HandWrittenNorm, "test_convert.HandWrittenNorm"])
def test_a_registered_converter_is_used_for_the_class_and_its_subclasses(kind: Any) -> None:
    class Derived(HandWrittenNorm):
        pass

    def converter(module: nn.Module) -> None:
        module.samestep_synchronised = True

    register_norm(kind, converter)
    assert synchronise(nn.Sequential(HandWrittenNorm(), Derived())) == []


def test_a_converter_for_a_subclass_goes_before_that_of_its_base() -> None:
    class Special(nn.BatchNorm1d):
        pass

    register_norm(Special, lambda module: setattr(module, "samestep_synchronised", True))
    layer = Special(3)
    synchronise(layer)
    assert type(layer) is Special


def test_a_converter_that_did_nothing_does_not_silence_the_finding() -> None:
    register_norm(HandWrittenNorm, lambda module: None)
    assert len(synchronise(HandWrittenNorm())) == 1


def test_a_name_without_a_module_is_refused() -> None:
    with pytest.raises(ConfigError, match="'BatchNorm', a name without a module"):
        register_norm("BatchNorm", lambda module: None)


class SparseTensor:
    """The structure of a sparse tensor of MinkowskiEngine: features of points, N_points × C."""

    def __init__(self, F: Tensor) -> None:
        self.F = F


class MinkowskiLikeBatchNorm(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(features, dtype=torch.float64)

    def forward(self, input: SparseTensor) -> SparseTensor:
        return SparseTensor(self.bn(input.F))


POINTS = [3, 1, 5, 2]  # of each of four clouds


def normalised_points(world: World, counts: list[int], synchronised: bool) -> np.ndarray:
    model = nn.Sequential(MinkowskiLikeBatchNorm(3), ProtocolNormOfPoints())
    if synchronised:
        assert synchronise(model) == []
    clouds = generated(sum(POINTS), 3, seed=1).split(POINTS)
    (mine,) = take(world, counts, torch.arange(4.0))
    rows = torch.cat([clouds[int(index)] for index in mine]) if not world.is_idle else clouds[0] * torch.nan
    output = model(SparseTensor(rows)).F
    return output.detach().numpy()[: 0 if world.is_idle else None]


class ProtocolNormOfPoints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ProtocolNorm()

    def forward(self, input: SparseTensor) -> SparseTensor:
        return SparseTensor(self.inner(input.F * input.F))


@pytest.mark.parametrize("counts", [[3, 1], [1, 2, 1], [2, 0, 1, 1]], ids=str)
def test_points_of_sparse_tensors_count_once_each(counts: list[int]) -> None:
    """A layer inside a layer is found, ragged points are weighed one by one, and so by the protocol."""
    (expected,) = worlds.run(1, normalised_points, counts=[4], synchronised=True)
    found = worlds.run(len(counts), normalised_points, counts=counts, synchronised=True)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-12, atol=1e-12)
    naive = worlds.run(len(counts), normalised_points, counts=counts, synchronised=False)
    assert np.abs(np.concatenate(naive) - expected).max() > 0.1
