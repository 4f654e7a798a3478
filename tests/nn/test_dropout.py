import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import generated, take
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import worlds
from samestep.data import shard
from samestep.nn import convert_dropout, dropout
from samestep.nn.dropout import DropoutStream, rank_dependent, set_stream
from samestep.nn.tracing import keep_out_of_graphs
from samestep.world import Share, World

KINDS = {
    "Dropout": (7,),
    "Dropout1d": (7, 2),
    "Dropout2d": (7, 2, 2),
    "Dropout3d": (7, 2, 2, 2),
    "AlphaDropout": (7,),
    "FeatureAlphaDropout": (7, 2, 2),
}
SPLITS = [[10], [7, 3], [4, 4, 2], [3, 3, 3, 1], [5, 0, 5]]
CPU = torch.device("cpu")


def begin(key: int) -> DropoutStream:
    stream = DropoutStream()
    stream.begin(key)
    set_stream(stream)
    return stream


@pytest.fixture(autouse=True)
def _no_stream() -> Any:
    yield
    set_stream(None)


def on_ranks(
    world: World,
    kind: str,
    counts: list[int],
    rows: int = 1,
    p: float = 0.4,
    inplace: bool = False,
    key: int = 5,
) -> list[np.ndarray]:
    """Outputs and gradients of two calls of one layer, for this rank's examples."""
    torch.manual_seed(100 + world.rank)  # as different as ranks can be
    begin(key)
    layer = getattr(nn, kind)(p=p, inplace=inplace)
    convert_dropout(layer)
    found = []
    for seed in (1, 2):
        whole = generated(sum(counts), rows, *KINDS[kind], seed=seed)
        (x,) = take(world, counts, whole)
        x = x.flatten(0, 1).requires_grad_()
        output = layer(x.clone())
        output.sum().backward()
        found += [output.detach().numpy(), x.grad.numpy()]
    assert rank_dependent(layer) == []
    set_stream(None)
    return [value[: 0 if world.is_idle else None] for value in found]


def joined(ranks: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(parts) for parts in zip(*ranks, strict=True)]


@pytest.mark.parametrize("counts", SPLITS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_masks_do_not_depend_on_the_world(kind: str, counts: list[int]) -> None:
    (expected,) = worlds.run(1, on_ranks, kind=kind, counts=[sum(counts)])
    found = joined(worlds.run(len(counts), on_ranks, kind=kind, counts=counts))
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


@pytest.mark.parametrize("rows", [2, 5])
def test_masks_of_examples_with_several_rows(rows: int) -> None:
    (expected,) = worlds.run(1, on_ranks, kind="Dropout", counts=[10], rows=rows)
    found = joined(worlds.run(3, on_ranks, kind="Dropout", counts=[4, 4, 2], rows=rows, inplace=True))
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def naive(world: World, counts: list[int]) -> np.ndarray:
    torch.manual_seed(0)
    (x,) = take(world, counts, torch.ones(sum(counts), 50))
    return nn.Dropout(0.4)(x).numpy()


def test_torchs_own_layer_fails_the_same_comparison() -> None:
    (expected,) = worlds.run(1, naive, counts=[10])
    found = np.concatenate(worlds.run(2, naive, counts=[5, 5]))
    assert (found != expected).any()
    assert (found[:5] == found[5:]).all()  # both ranks drop alike


def test_steps_calls_and_seeds_have_masks_of_their_own() -> None:
    masks = [call == 0 for key in (5, 6) for call in on_one(key)]
    for first, mask in enumerate(masks):
        for other in masks[:first]:
            assert (mask != other).any()


def on_one(key: int) -> list[np.ndarray]:
    (found,) = worlds.run(1, on_ranks, kind="Dropout", counts=[10], key=key)
    return [found[1], found[3]]


@pytest.mark.parametrize("kind", ["AlphaDropout", "FeatureAlphaDropout", "Dropout", "Dropout2d"])
def test_values_are_those_of_torch_for_the_same_mask(kind: str) -> None:
    """Only two values come out for an input of ones, and they are the two that torch produces."""
    theirs = getattr(nn, kind)(p=0.4)(torch.ones(400, *KINDS[kind], dtype=torch.float64)).unique()
    ours = torch.from_numpy(worlds.run(1, of_ones, kind=kind)[0]).unique()
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)
    assert len(ours) == 2


def of_ones(world: World, kind: str) -> np.ndarray:
    begin(1)
    layer = getattr(nn, kind)(p=0.4)
    convert_dropout(layer)
    (x,) = take(world, [100], torch.ones(100, *KINDS[kind], dtype=torch.float64))
    output = layer(x)
    set_stream(None)
    return output.numpy()


@settings(max_examples=40, deadline=None)
@given(p=st.floats(0.01, 0.99), key=st.integers(0, 2**62), call=st.integers(0, 1000))
def test_the_drop_rate_is_p(p: float, key: int, call: int) -> None:
    """The number dropped of n is binomial: standard deviation √(n·p·(1−p)).

    Six of those are left with probability 2·10⁻⁹ a draw, so that 40 draws a run fail once in 10⁷ runs.
    """
    n = 128 * 512
    bits = dropout._bits(key, call, 0, 128, 512, CPU)
    dropped = int((bits < dropout._threshold(p)).sum())
    assert abs(dropped - n * p) < 6 * math.sqrt(n * p * (1 - p))


def signs(key: int = 1, call: int = 0, first: int = 0) -> Tensor:
    """±1 with equal probability: the mask of p = 1/2."""
    return torch.where(dropout._bits(key, call, first, 256, 1024, CPU) < 0, -1.0, 1.0).double()


def assert_uncorrelated(correlations: Tensor, n: int) -> None:
    """Each is a mean of n independent signs: normal with deviation 1/√n, beyond 7 of them with 3·10⁻¹².

    Their squares, times n, are χ² with as many degrees of freedom as there are: mean m, deviation √(2m).
    """
    m = correlations.numel()
    assert correlations.abs().max() < 7 / math.sqrt(n)
    assert abs(correlations.square().sum() * n - m) < 7 * math.sqrt(2 * m)


def test_rows_columns_calls_and_steps_are_not_correlated() -> None:
    s = signs()
    above = torch.triu(torch.ones(256, 256), 1).bool()
    assert_uncorrelated((s @ s.T / 1024)[above], 1024)
    columns = s[:, :256].T
    assert_uncorrelated((columns @ columns.T / 256)[above], 256)
    for other in (signs(call=1), signs(key=2), signs(first=256)):
        assert_uncorrelated((s @ other.T / 1024).flatten(), 1024)
    assert_uncorrelated((s[:, 1:] * s[:, :-1]).mean(1), 1023)


def test_rectangles_are_not_correlated() -> None:
    """Row and column keys meet in ⊕, so the keys of a rectangle's corners cancel; their masks must not."""
    s = signs()
    edges = s[::2] * s[1::2]
    corners = edges[:, ::2] * edges[:, 1::2]
    assert_uncorrelated(corners.mean(1), 512)
    linear = torch.arange(256).view(-1, 1) ^ torch.arange(1024)  # no mixing: all corners cancel
    parity = torch.where((linear * 7 & 1) == 1, -1.0, 1.0)
    edges = parity[::2] * parity[1::2]
    with pytest.raises(AssertionError):
        assert_uncorrelated((edges[:, ::2] * edges[:, 1::2]).mean(1), 512)


def test_the_bits_that_decide_are_uniform() -> None:
    """χ² of 256 classes for the top byte, with 255 degrees of freedom; its deviation is √510."""
    bits = dropout._bits(3, 4, 0, 256, 1024, CPU)
    counts = torch.bincount(((bits >> 24) + 128).flatten().long(), minlength=256).double()
    expected = bits.numel() / 256
    assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 7 * math.sqrt(510)


def limits(world: World) -> dict[str, bool]:
    begin(1)
    (x,) = take(world, [4], torch.ones(4, 6))
    found = {}
    for p in (0.0, 1.0):
        layer = nn.Dropout(p)
        convert_dropout(layer)
        found[f"p is {p}"] = torch.equal(layer(x), x * (1 - p))
    layer = nn.Dropout(0.5, inplace=True)
    convert_dropout(layer)
    found["eval"] = layer.eval()(x) is x
    output = layer.train()(x)
    found["inplace"] = output is x and bool((x == 0).any())
    set_stream(None)
    torch.manual_seed(3)
    ours = layer(torch.ones(4, 6))
    torch.manual_seed(3)
    found["no stream"] = torch.equal(ours, nn.Dropout(0.5)(torch.ones(4, 6))) and rank_dependent(layer) == []
    return found


def test_limits() -> None:
    (found,) = worlds.run(1, limits)
    assert all(found.values()), found


class Stack(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.5))
        self.after = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "plain":
            return self.after(self.block(x))
        return self.after(checkpoint(self.block, x, use_reentrant=self.how == "reentrant"))


def gradients(world: World, how: str, compiled: bool = False) -> list[np.ndarray]:
    torch.manual_seed(0)
    model = Stack(how)
    convert_dropout(model)
    begin(9)
    (x,) = take(world, [6], generated(6, 6, seed=1, dtype=torch.float32))
    x.requires_grad_()
    run = torch.compile(model, backend="eager") if compiled else model
    keep_out_of_graphs()  # as every step does before the model runs
    run(x).sum().backward()
    set_stream(None)
    return [x.grad.numpy(), *(p.grad.numpy() for p in model.parameters())]


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_activation_checkpointing_finds_the_same_masks_again(how: str) -> None:
    (expected,), (found,) = worlds.run(1, gradients, how="plain"), worlds.run(1, gradients, how=how)
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


def test_compiled_models_have_the_same_masks() -> None:
    (expected,), (found,) = (
        worlds.run(1, gradients, how="plain"),
        worlds.run(1, gradients, how="plain", compiled=True),
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


class Halved(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / 2


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob


def ragged(world: World) -> list[str]:
    begin(1)
    model = nn.ModuleDict({"even": Halved(0.5), "ragged": nn.Dropout(0.5), "alone": nn.Dropout1d(0.5)})
    convert_dropout(model)
    take(world, [4], torch.zeros(4, 1))
    model["even"](torch.ones(8, 3))
    model["ragged"](torch.ones(7, 3))
    model["alone"](torch.ones(4, 3))
    set_stream(None)
    return rank_dependent(model)


def test_layers_whose_rows_are_not_examples_are_named() -> None:
    assert worlds.run(1, ragged) == [["ragged", "alone"]]


def test_modules_that_draw_for_themselves_are_named() -> None:
    model = nn.ModuleDict(
        {
            "attention": nn.MultiheadAttention(4, 2, dropout=0.1),
            "quiet attention": nn.MultiheadAttention(4, 2),
            "rnn": nn.LSTM(4, 4, num_layers=2, dropout=0.1),
            "path": DropPath(0.1),
            "quiet path": DropPath(0.0),
            "ours": Halved(0.1),
        }
    )
    convert_dropout(model)
    assert isinstance(model["ours"], Halved)
    assert rank_dependent(model) == ["attention", "rnn", "path"]


def test_a_stream_without_a_world_falls_back_and_says_so() -> None:
    begin(1)
    layer = nn.Dropout(0.5)
    convert_dropout(layer)
    layer(torch.ones(4, 3))
    assert rank_dependent(layer) == [""]


def sequence_first(world: World) -> list[Tensor]:
    """Masks of (steps, examples, features) tensors whose number of steps is a multiple of every share."""
    model = nn.Sequential(nn.Dropout(0.5))
    convert_dropout(model)
    found = []
    dropout.set_stream(masks := dropout.DropoutStream())
    for shares_of in (12, 6):
        first, last = shard.cut(shares_of, world.size, world.rank)
        world.share = Share(
            first=first, count=last - first, total=shares_of, turn=0, turns=1, epoch=0, position=0
        )
        masks.begin(7)
        found.append(model(torch.ones(24, last - first, 3)))
    dropout.set_stream(None)
    world.share = None
    return found


def test_sequence_first_masks_belong_to_the_example_too() -> None:
    reference = worlds.run(1, sequence_first)[0]
    assert 0.4 < float((reference[0] == 0).float().mean()) < 0.6
    for size in (2, 3):
        ranks = worlds.run(size, sequence_first)
        for i, whole in enumerate(reference):
            assert torch.equal(torch.cat([rank[i] for rank in ranks], dim=1), whole)
