"""Numbers that travel with the gradients: exact where they must be, on every kind of parameter."""

import math

import pytest
import torch
from torch import Tensor, nn

import worlds
from samestep.train.exchange import Exchange

DTYPES = ["float32", "float64", "bfloat16"]


def of_rank(rank: int) -> Tensor:
    """A whole number far beyond what float32 counts to, a fraction, and a number of everyday size."""
    return torch.tensor([2**33 + 4097 * rank + 1, 0.1 * (rank + 1), -3.0 * rank], dtype=torch.float64)


def carried(world, dtype: str, numbers: list[float] | None = None) -> tuple[list[float], list[float]]:
    """The numbers after the exchange, and the gradient that they travelled with."""
    model = nn.Linear(3, 2, dtype=getattr(torch, dtype))
    exchange = Exchange(list(model.parameters()), world, seats=3)
    mine = of_rank(world.rank) if numbers is None else torch.tensor(numbers, dtype=torch.float64)
    exchange.carry(mine)
    exchange.begin()
    model(torch.ones(1, 3, dtype=model.weight.dtype)).sum().backward()
    exchange.finish()
    exchange.close()
    assert model.bias.grad is not None
    return mine.tolist(), model.bias.grad.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_numbers_are_summed_over_ranks(size: int, dtype: str) -> None:
    expected = torch.stack([of_rank(rank) for rank in range(size)]).sum(0).tolist()
    for numbers, gradient in worlds.run(size, carried, dtype=dtype):
        assert numbers[0] == expected[0], "a whole number is exact"
        assert numbers[2] == expected[2]
        # each rank's fraction is rounded once to float32 and so is each of the size - 1 additions
        assert numbers[1] == pytest.approx(expected[1], rel=size * torch.finfo(torch.float32).eps)
        assert gradient == [size, size]


def test_float32_alone_would_not_count_so_far() -> None:
    """The negative control: summed as one float32 each, the same numbers come out wrong."""
    ranks = [of_rank(rank).float() for rank in range(4)]
    assert sum(ranks).tolist()[0] != sum(of_rank(rank)[0].item() for rank in range(4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_what_it_is(dtype: str) -> None:
    for numbers, gradient in worlds.run(2, carried, dtype=dtype, numbers=[math.inf, math.nan, -math.inf]):
        assert numbers[0] == math.inf and math.isnan(numbers[1]) and numbers[2] == -math.inf
        assert gradient == [2, 2], "the gradients beside them are untouched"


def steps_without_numbers(world) -> list[list[float]]:
    """Numbers in one step must not come again in the next, which has none."""
    model = nn.Linear(3, 2)
    exchange = Exchange(list(model.parameters()), world, seats=3)
    seen = []
    for numbers in (of_rank(0), None):
        if numbers is not None:
            exchange.carry(numbers)
        model.zero_grad()
        exchange.begin()
        model(torch.ones(1, 3)).sum().backward()
        exchange.finish()
        assert model.bias.grad is not None
        seen.append(model.bias.grad.tolist())
    exchange.close()
    return seen


def test_a_step_may_go_without_numbers() -> None:
    assert worlds.run(2, steps_without_numbers) == [[[2, 2], [2, 2]]] * 2
