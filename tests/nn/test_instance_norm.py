import numpy as np
import pytest
import torch
from shares import generated, take
from torch import nn

import worlds
from samestep.nn import synchronise
from samestep.world import World

SHAPE = (3, 4, 5)


def running_statistics(world: World, counts: list[int], synchronised: bool = True) -> list[np.ndarray]:
    layer = nn.InstanceNorm2d(3, track_running_stats=True, affine=True, dtype=torch.float64)
    if synchronised:
        assert synchronise(layer) == []
    for seed in (1, 2):
        (x,) = take(world, counts, generated(sum(counts), *SHAPE, seed=seed))
        layer(x)
    return [layer.running_mean.numpy(), layer.running_var.numpy()]


@pytest.mark.parametrize("counts", [[7, 3], [4, 4, 2], [1, 1, 0, 1]], ids=str)
def test_running_statistics_cover_all_ranks(counts: list[int]) -> None:
    (expected,) = worlds.run(1, running_statistics, counts=[sum(counts)], synchronised=False)
    for found in worlds.run(len(counts), running_statistics, counts=counts):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_torchs_own_layer_fails_the_same_comparison() -> None:
    (expected,) = worlds.run(1, running_statistics, counts=[10], synchronised=False)
    for found in worlds.run(2, running_statistics, counts=[7, 3], synchronised=False):
        assert np.abs(found[0] / expected[0] - 1).min() > 0.1


def test_a_layer_that_tracks_nothing_is_left_alone() -> None:
    layer = nn.InstanceNorm1d(3)
    assert synchronise(layer) == []
    assert type(layer) is nn.InstanceNorm1d
