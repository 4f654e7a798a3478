import copy
from typing import Any

import numpy as np
import pytest
import torch
from shares import generated, take
from torch import Tensor, nn

import worlds
from samestep.nn import batch_norm, synchronise
from samestep.nn.tracing import keep_out_of_graphs
from samestep.world import World

CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "1d": ("BatchNorm1d", (3,), {}),
    "1d of sequences, cumulative": ("BatchNorm1d", (3, 4), {"momentum": None}),
    "2d": ("BatchNorm2d", (3, 4, 2), {"momentum": 0.3, "eps": 1e-3}),
    "3d without parameters": ("BatchNorm3d", (2, 2, 3, 2), {"affine": False}),
    "2d without tracking": ("BatchNorm2d", (3, 4, 2), {"track_running_stats": False}),
    "lazy": ("LazyBatchNorm2d", (3, 4, 2), {}),
    "torch's SyncBatchNorm": ("SyncBatchNorm", (3, 4, 2), {}),
    "subclass": ("Doubled", (3, 4, 2), {}),
}
SPLITS = [[7, 3], [4, 4, 2], [3, 3, 3, 1]]
IDLE_SPLITS = [[3, 0], [0, 2, 1], [1, 1, 1, 0]]


class Doubled(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def build(kind: str, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    features = () if kind.startswith("Lazy") else (shape[0],)
    layer: nn.Module = {"Doubled": Doubled}.get(kind, getattr(nn, kind, None))(
        *features, **options, dtype=dtype
    )
    if kind.startswith("Lazy"):
        layer.eval()(torch.zeros(1, *shape, dtype=dtype))
        layer.train()
    for index, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(generated(len(parameter), seed=10 + index) / 2)
    return layer


def steps(
    layer: nn.Module, batches: list[tuple[Tensor, Tensor]], weight: float = 1.0
) -> dict[str, np.ndarray]:
    """Two training forwards and backwards; what came of the last, and the running statistics of both."""
    for x, target in batches:
        x.requires_grad_()
        layer.zero_grad()
        output = layer(x)
        (weight * (output.sin() * target.nan_to_num()).sum()).backward() if weight else output.backward(
            torch.zeros_like(output)
        )
    found = {"output": output, "grad": x.grad}
    found |= {f"grad of {name}": p.grad for name, p in layer.named_parameters()}
    found |= {name: b for name, b in layer.named_buffers() if b is not None}
    return {name: value.detach().double().numpy() for name, value in found.items()}


def batches_of(shape: tuple[int, ...], total: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    return [
        (
            generated(total, *shape, seed=20 + n, dtype=dtype),
            generated(total, *shape, seed=30 + n, dtype=dtype),
        )
        for n in range(2)
    ]


def on_ranks(
    world: World, case: str, counts: list[int], dtype: str = "float64", synchronised: bool = True
) -> dict[str, np.ndarray]:
    kind, shape, options = CASES[case]
    layer = build(kind, shape, options, getattr(torch, dtype))
    if synchronised:
        assert synchronise(layer) == []
    whole = batches_of(shape, sum(counts), getattr(torch, dtype))
    batches = [take(world, counts, *batch) for batch in whole]
    found = steps(layer, batches, weight=0.0 if world.is_idle else 1.0)
    if synchronised:
        assert layer.samestep_exchanges == 2
    return found


def merged(ranks: list[dict[str, np.ndarray]], counts: list[int]) -> dict[str, np.ndarray]:
    """The ranks' results as one: rows joined, parameter gradients summed, buffers of which all are equal."""
    busy = [rank for rank, count in zip(ranks, counts, strict=True) if count]
    result = {}
    for name in ranks[0]:
        if name in ("output", "grad"):
            result[name] = np.concatenate([rank[name] for rank in busy])
        elif name.startswith("grad of"):
            result[name] = np.sum([rank[name] for rank in ranks], axis=0)
        else:
            for rank in ranks[1:]:
                assert rank[name].tobytes() == ranks[0][name].tobytes()
            result[name] = ranks[0][name]
    return result


def reference(case: str, total: int, dtype: torch.dtype = torch.float64) -> dict[str, np.ndarray]:
    kind, shape, options = CASES[case]
    plain = {"LazyBatchNorm2d": "BatchNorm2d", "SyncBatchNorm": "BatchNorm2d"}.get(kind, kind)
    return steps(build(plain, shape, options, dtype), batches_of(shape, total, dtype))


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], relative: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=relative, atol=relative * np.abs(value).max(), err_msg=name
        )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("counts", SPLITS + IDLE_SPLITS, ids=str)
def test_equals_one_rank_with_the_whole_batch(case: str, counts: list[int]) -> None:
    ranks = worlds.run(len(counts), on_ranks, case=case, counts=counts)
    assert_close(merged(ranks, counts), reference(case, sum(counts)), 1e-12)


@pytest.mark.parametrize("counts", SPLITS, ids=str)
def test_equals_one_rank_in_single_precision(counts: list[int]) -> None:
    ranks = worlds.run(len(counts), on_ranks, case="2d", counts=counts, dtype="float32")
    # Sums of n = 10·4·2 terms are exact to n·u, u = 2⁻²⁴, of the sum of their sizes (Higham, ch. 4), which is
    # below the largest entry times n; dividing by n leaves n·u of the largest entry. The output depends on
    # two such sums, the gradient on two more, and each side of the comparison has its own: 8·n·u.
    tolerance = 8 * 10 * 4 * 2 * 2.0**-24
    assert_close(merged(ranks, counts), reference("2d", 10, torch.float32), tolerance)


def test_an_idle_rank_has_gradients_of_zero() -> None:
    idle = worlds.run(4, on_ranks, case="2d", counts=[1, 1, 1, 0])[3]
    for name in ("grad", "grad of weight", "grad of bias"):
        assert (idle[name] == 0).all()


@pytest.mark.parametrize("counts", SPLITS, ids=str)
def test_torchs_own_layer_fails_the_same_comparison(counts: list[int]) -> None:
    kind, shape, options = CASES["2d"]
    tensors = [tensor for batch in batches_of(shape, 10, torch.float64) for tensor in batch]
    parts = zip(*([part.clone() for part in tensor.split(counts)] for tensor in tensors), strict=True)
    ranks = [
        steps(build(kind, shape, options, torch.float64), [(x0, t0), (x1, t1)]) for x0, t0, x1, t1 in parts
    ]
    expected = reference("2d", 10)
    for name in ("output", "grad"):
        naive = np.concatenate([rank[name] for rank in ranks])
        assert np.abs(naive - expected[name]).max() > 0.1 * np.abs(expected[name]).max()
    with pytest.raises(AssertionError):
        merged(ranks, counts)


def test_conversion_keeps_everything_but_the_class() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), Doubled(3), nn.SyncBatchNorm(3), nn.LazyBatchNorm1d())
    layers, keys = list(model), list(model.state_dict())
    parameters, calls = dict(model.named_parameters()), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    synchronise(model)
    synchronise(model)  # a second time changes nothing
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model, layers, strict=True))
    assert all(parameters[name] is p for name, p in model.named_parameters())
    assert isinstance(model[0], nn.BatchNorm2d)
    assert isinstance(model[1], Doubled)
    assert not isinstance(model[2], nn.SyncBatchNorm)
    model[3](torch.randn(4, 5))
    assert isinstance(model[3], nn.BatchNorm1d)
    assert model[3].samestep_synchronised
    model[0](torch.randn(2, 3, 4, 4))
    assert calls == [1]
    assert type(copy.deepcopy(model)[1]) is type(model[1])


def test_without_a_world_and_in_evaluation_it_is_torchs_layer() -> None:
    ours, plain = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    synchronise(ours)
    x = generated(4, 3, 2, 2, seed=1, dtype=torch.float32)
    for mode in (True, False):
        assert torch.equal(ours.train(mode)(x), plain.train(mode)(x))
        assert torch.equal(ours.running_var, plain.running_var)
    with pytest.raises(ValueError, match="expected 4D input"):
        ours(x[0])


def other_modes(world: World) -> dict[str, Any]:
    """What stays torch's own on two ranks, and what must still work."""
    (x,) = take(world, [7, 3], generated(10, 3, 4, 4, seed=1, dtype=torch.float32))
    layer = nn.BatchNorm2d(3)
    synchronise(layer)
    found: dict[str, Any] = {}

    output = layer.eval()(x)
    found["eval is local"] = layer.samestep_exchanges == 0 and torch.equal(
        output, nn.BatchNorm2d(3).eval()(x)
    )

    layer.train()
    last = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    output = layer(last)
    output.square().sum().backward()
    found["channels_last"] = output.is_contiguous(
        memory_format=torch.channels_last
    ) and last.grad.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        found["without gradients"] = torch.equal(layer(x), layer(x))

    before = layer.running_mean.clone()
    compiled = torch.compile(nn.Sequential(layer, nn.ReLU()), backend="eager")
    keep_out_of_graphs()  # as every step does before the model runs
    exchanges = layer.samestep_exchanges
    compiled(x).sum().backward()
    found["compiled"] = layer.samestep_exchanges == exchanges + 1 and not torch.equal(
        before, layer.running_mean
    )
    return found


def test_other_modes() -> None:
    for found in worlds.run(2, other_modes):
        assert all(found.values()), found


def in_bf16(world: World, counts: list[int]) -> dict[str, np.ndarray]:
    layer = nn.BatchNorm2d(3)
    synchronise(layer)
    x, target = take(world, counts, *batches_of((3, 4, 4), 10, torch.float32)[0])
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(nn.functional.conv2d(x, torch.eye(3).view(3, 3, 1, 1)))
    assert output.dtype == torch.bfloat16
    (output.float() * target).sum().backward()
    found = {"output": output, "grad": x.grad, "grad of weight": layer.weight.grad}
    found |= {"running_mean": layer.running_mean, "running_var": layer.running_var}
    return {name: value.detach().double().numpy() for name, value in found.items()}


def test_half_precision_has_single_precision_statistics() -> None:
    """The ranks see the same bf16 numbers as one rank, so statistics agree as float32 ones do."""
    single = worlds.run(1, in_bf16, counts=[10])
    found, expected = merged(worlds.run(3, in_bf16, counts=[4, 4, 2]), [4, 4, 2]), merged(single, [10])
    n = 10 * 4 * 4
    for name in ("running_mean", "running_var", "grad of weight"):
        np.testing.assert_allclose(found[name], expected[name], rtol=8 * n * 2.0**-24)
    # the output is rounded once to bf16 (u = 2⁻⁹ of the entry); the gradient is a sum of two rounded terms
    # and rounded again on the way through the convolution: 4u of the largest term
    np.testing.assert_allclose(found["output"], expected["output"], rtol=2 * 2.0**-9, atol=2.0**-12)
    terms = np.abs(batches_of((3, 4, 4), 10, torch.float32)[0][1].numpy()).max()
    np.testing.assert_allclose(found["grad"], expected["grad"], atol=4 * 2.0**-9 * terms)


def lonely_value(world: World) -> str:
    layer = nn.BatchNorm1d(3)
    synchronise(layer)
    (x,) = take(world, [1, 0], generated(1, 3, seed=1, dtype=torch.float32))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as error:
        layer(x)
    return str(error.value)


def test_one_value_in_all_is_refused_on_every_rank_as_torch_does() -> None:
    first, second = worlds.run(2, lonely_value)
    assert "1 over all 2 ranks" in first
    assert "1 over all 2 ranks" in second
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        nn.BatchNorm1d(3)(torch.ones(1, 3))


def points(world: World) -> np.ndarray:
    """A rank whose examples hold no point at all still takes part."""
    layer = nn.BatchNorm1d(3, dtype=torch.float64)
    synchronise(layer)
    take(world, [1, 1], torch.zeros(2, 1))
    x = generated(5, 3, seed=1)[: 5 if world.is_first else 0].requires_grad_()
    layer(x).sin().sum().backward()
    assert x.grad.shape == x.shape
    return layer.running_mean.numpy()


def test_a_rank_with_examples_but_without_values() -> None:
    plain = nn.BatchNorm1d(3, dtype=torch.float64)
    plain(generated(5, 3, seed=1))
    for running_mean in worlds.run(2, points):
        np.testing.assert_allclose(running_mean, plain.running_mean, rtol=1e-12)


PLANES = [(32, 16, 32, 32), (1, 3, 5, 7), (8, 4, 4096), (2, 3, 1, 1), (2, 2, 3, 4, 5)]


@pytest.mark.parametrize("offset", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize("shape", PLANES)
def test_moments_of_planes_are_as_exact_as_the_kernels(shape, offset):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + offset
    zeros = torch.zeros(shape[1])
    ours = batch_norm._moments_of_planes(x.flatten(2), x.numel() // shape[1])
    kernels = torch.batch_norm_update_stats(x, zeros, zeros.clone(), 0.0)
    dims = [dim for dim in range(x.dim()) if dim != 1]
    var, mean = torch.var_mean(x.double(), dims, correction=0)
    # one rounding of float32, relative to the values that are added up
    sizes = (mean.square() + var).sqrt(), var
    for found, by_kernel, exact, size in zip(ours, kernels, (mean, var), sizes, strict=True):
        rounding = torch.finfo(torch.float32).eps * size
        assert ((found - exact).abs() <= (by_kernel - exact).abs() + rounding).all()
