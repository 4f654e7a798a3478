import numpy as np
import pytest
import torch
from shares import generated, take

import worlds
from samestep.nn import moments, sum_over_ranks
from samestep.world import World

SHAPE = (10, 3, 4)
SPLITS = {1: [10], 2: [7, 3], 3: [4, 4, 2], 4: [3, 3, 3, 1]}
IDLE_SPLITS = {2: [3, 0], 3: [0, 2, 1], 4: [1, 1, 0, 1]}


def moments_of(world: World, counts: list[int], dtype: str = "float64") -> dict[str, np.ndarray]:
    whole = generated(sum(counts), *SHAPE[1:], seed=1, dtype=getattr(torch, dtype))
    (x,) = take(world, counts, whole)
    x.requires_grad_()
    mean, var, count = moments(x, (0, 2))
    # a loss of every rank's own that uses both; ranks differ in what they make of the same statistics
    factor = 0.0 if world.is_idle else world.rank + 1.0
    (factor * (mean.sin().sum() + (var * mean).sum())).backward()
    return {
        "mean": mean.detach().numpy(),
        "var": var.detach().numpy(),
        "count": count.numpy(),
        "grad": x.grad.numpy(),
    }


def reference(counts: list[int], dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    x = generated(sum(counts), *SHAPE[1:], seed=1, dtype=dtype).requires_grad_()
    var, mean = torch.var_mean(x, (0, 2), correction=0)
    factor = sum(rank + 1.0 for rank, count in enumerate(counts) if count)
    (factor * (mean.sin().sum() + (var * mean).sum())).backward()
    return {"mean": mean.detach(), "var": var.detach(), "grad": x.grad}


def joined(ranks: list[dict[str, np.ndarray]], counts: list[int]) -> np.ndarray:
    return np.concatenate([r["grad"] for r, count in zip(ranks, counts, strict=True) if count])


@pytest.mark.parametrize("counts", [*SPLITS.values(), *IDLE_SPLITS.values()], ids=str)
def test_moments_and_their_gradients_are_those_of_the_whole_batch(counts: list[int]) -> None:
    ranks = worlds.run(len(counts), moments_of, counts=counts)
    expected = reference(counts)
    for rank in ranks:
        np.testing.assert_allclose(rank["mean"], expected["mean"], rtol=1e-12)
        np.testing.assert_allclose(rank["var"], expected["var"], rtol=1e-12)
        assert rank["count"] == sum(counts) * SHAPE[2]
    np.testing.assert_allclose(joined(ranks, counts), expected["grad"], rtol=1e-12)


def test_every_rank_gets_the_same_bits() -> None:
    ranks = worlds.run(3, moments_of, counts=[4, 4, 2], dtype="float32")
    for rank in ranks[1:]:
        assert rank["mean"].tobytes() == ranks[0]["mean"].tobytes()
        assert rank["var"].tobytes() == ranks[0]["var"].tobytes()


def test_an_idle_rank_gets_zeros_and_lets_no_nan_out() -> None:
    ranks = worlds.run(4, moments_of, counts=[1, 1, 0, 1])
    assert (ranks[2]["grad"] == 0).all()
    assert np.isfinite(ranks[0]["mean"]).all()


def test_half_precision_has_float32_statistics() -> None:
    (rank, _) = worlds.run(2, moments_of, counts=[2, 1], dtype="float16")
    assert rank["mean"].dtype == rank["var"].dtype == np.float32
    assert rank["grad"].dtype == np.float16


def test_averaging_the_ranks_own_variances_fails_the_same_comparison() -> None:
    counts = SPLITS[4]
    x = generated(10, *SHAPE[1:], seed=1)
    naive = torch.stack([part.var((0, 2), correction=0) for part in x.split(counts)]).mean(0)
    expected = reference(counts)["var"]
    assert ((naive - expected).abs() / expected).min() > 0.3


def test_a_large_mean_does_not_drown_the_variance() -> None:
    """Merging by sums of squares loses all digits here: (10⁸)² needs 53 bits and more."""
    (rank, _) = worlds.run(2, far_from_zero)
    x = 1e8 + generated(10, 3, seed=2)
    # the input itself is only known to ulp(1e8) = 1.5e-8, as is each x - mean of size 1
    np.testing.assert_allclose(rank, x.var(0, correction=0), rtol=4 * 1.5e-8)
    by_squares = x.square().mean(0) - x.mean(0).square()
    assert ((by_squares - x.var(0, correction=0)).abs() > 0.01).any()


def far_from_zero(world: World) -> np.ndarray:
    (x,) = take(world, [7, 3], 1e8 + generated(10, 3, seed=2))
    return moments(x, 0)[1].numpy()


def summed(world: World, counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    (x,) = take(world, counts, generated(sum(counts), 3, seed=3))
    rows = x.sum(0).requires_grad_()
    total = sum_over_ranks(rows)
    factor = 0.0 if world.is_idle else world.rank + 1.0
    (factor * total.square().sum()).backward()
    return total.detach().numpy(), rows.grad.numpy()


@pytest.mark.parametrize("counts", [[10], [7, 3], [4, 4, 2], [2, 0, 1]], ids=str)
def test_sum_over_ranks_and_its_gradient(counts: list[int]) -> None:
    expected = generated(sum(counts), 3, seed=3).sum(0)
    factor = sum(rank + 1.0 for rank, count in enumerate(counts) if count)
    for count, (total, grad) in zip(counts, worlds.run(len(counts), summed, counts=counts), strict=True):
        np.testing.assert_allclose(total, expected, rtol=1e-12)
        np.testing.assert_allclose(grad, 2 * factor * expected if count else 0 * expected, rtol=1e-12)


def test_without_a_world_it_is_plain_torch() -> None:
    x = generated(6, 3, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: moments(x, 0)[:2], x)
    torch.testing.assert_close(sum_over_ranks(x), x)
