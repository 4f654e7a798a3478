"""Numbers that travel with the gradients: exact where they must be, on every kind of parameter."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import worlds
from samestep.train.exchange import Exchange

DTYPES = ["float32", "float64", "bfloat16"]


def of_rank(rank: int) -> list[float]:
    """A whole number far beyond what float32 counts to, a fraction, and a number of everyday size."""
    return [2.0**33 + 4097 * rank + 1, 0.1 * (rank + 1), -3.0 * rank]


def carried(world, dtype: str = "float32", given: Any = None, **how: bool) -> tuple[list[float], list[float]]:
    """The numbers after an exchange, and the gradient that they travelled with.

    Twice: what is left of one step must not get into the next. With `on_device` they are a tensor, as where
    reading them would mean to wait; `in_turns`, they come in two halves.
    """
    model = nn.Linear(3, 2, dtype=getattr(torch, dtype))
    exchange = Exchange(list(model.parameters()), world, seats=3)
    for _ in range(2):
        model.zero_grad()
        numbers: Any = of_rank(world.rank) if given is None else given
        if how.get("on_device"):
            numbers = torch.tensor(numbers, dtype=torch.float64)
        if how.get("in_turns"):
            exchange.add([number / 2 for number in numbers], is_last=False)
            numbers = numbers / 2 if how.get("on_device") else [number / 2 for number in numbers]
        exchange.add(numbers, is_last=True)
        model(torch.ones(1, 3, dtype=model.weight.dtype)).sum().backward()
        sums = exchange.finish()
    exchange.close()
    assert model.bias.grad is not None
    return [float(number) for number in sums], model.bias.grad.tolist()


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_numbers_are_summed_over_ranks(size: int, dtype: str, on_device: bool, in_turns: bool) -> None:
    expected = [sum(numbers) for numbers in zip(*map(of_rank, range(size)), strict=True)]
    for sums, gradient in worlds.run(size, carried, dtype=dtype, on_device=on_device, in_turns=in_turns):
        assert sums[0] == expected[0], "a whole number is exact"
        assert sums[2] == expected[2]
        # each rank's fraction is rounded once to float32, and so is each of the size - 1 additions
        assert sums[1] == pytest.approx(expected[1], rel=size * torch.finfo(torch.float32).eps)
        assert gradient == [size, size]


def test_float32_alone_would_not_count_so_far() -> None:
    """The negative control: summed as one float32 each, the same numbers come out wrong."""
    ranks = [torch.tensor(of_rank(rank)[0], dtype=torch.float32) for rank in range(4)]
    assert float(torch.stack(ranks).sum()) != sum(of_rank(rank)[0] for rank in range(4))


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_what_it_is(dtype: str, on_device: bool) -> None:
    given = [math.inf, math.nan, -math.inf]
    for sums, gradient in worlds.run(2, carried, dtype=dtype, given=given, on_device=on_device):
        assert sums[0] == math.inf and math.isnan(sums[1]) and sums[2] == -math.inf
        assert gradient == [2, 2], "the gradients beside them are untouched"


def frozen_halfway(world) -> list[list[float]]:
    """Some parameters get no gradient, so that the rest of their bucket is cleared: the numbers are not."""
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    exchange = Exchange(list(model.parameters()), world, seats=3)
    exchange.add([1.0, 2.0, 3.0], is_last=True)
    model[1](torch.ones(1, 2)).sum().backward()
    sums = exchange.finish()
    exchange.close()
    assert model[0].weight.grad is None and model[1].bias.grad is not None
    return [list(sums), model[1].bias.grad.tolist()]


def test_numbers_pass_by_parameters_without_gradients() -> None:
    assert worlds.run(2, frozen_halfway) == [[[2.0, 4.0, 6.0], [2.0, 2.0]]] * 2
