from typing import Any

import torch
import torch.nn.functional as F
from shares import generated, take
from torch import Tensor, nn

import worlds
from samestep.nn import checks, synchronise
from samestep.world import World


class Bypass(nn.BatchNorm1d):
    """A subclass that calls the function itself, and so never reaches the synchronised forward."""

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, self.running_mean, self.running_var, training=self.training)


class Secret(nn.Module):
    """Statistics that nothing but their changing gives away."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3))
        self.register_buffer("steps_done", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.state.mul_(0.9).add_(0.1 * x.detach().mean(0))
        self.steps_done += 1
        return x - self.state


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.good = nn.BatchNorm1d(3)
        self.bypass = Bypass(3)
        self.secret = Secret()
        self.unused = nn.BatchNorm1d(3)
        self.frozen = nn.BatchNorm1d(3).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.secret(self.bypass(self.good(x))))


def found_on_ranks(world: World, counts: list[int]) -> dict[str, Any]:
    model = Net()
    assert synchronise(model) == []
    before = checks.snapshot(model)
    (x,) = take(world, counts, generated(sum(counts), 3, seed=1, dtype=torch.float32))
    model(x)
    silent = checks.never_exchanged(model, world, before)
    without_snapshot = checks.never_exchanged(model, world)
    changed = checks.changed_buffers(model, before, world)
    return {
        "silent": [f.evidence["module"] for f in silent],
        "without snapshot": [f.evidence["module"] for f in without_snapshot],
        "changed": {f.evidence["module"]: f.evidence["buffers"] for f in changed},
        "messages": [f.message for f in silent + changed],
    }


def test_a_layer_that_never_exchanged_is_named_and_one_that_never_ran_is_not() -> None:
    for found in worlds.run(2, found_on_ranks, counts=[7, 3]):
        assert found["silent"] == ["bypass"]
        assert found["without snapshot"] == ["bypass", "unused"]
        assert "bypass (test_norm_checks.Bypass)" in found["messages"][0]


def test_buffers_that_changed_and_differ_are_named_on_all_ranks() -> None:
    for found in worlds.run(3, found_on_ranks, counts=[4, 2, 4]):
        assert found["changed"] == {"bypass": ["running_mean", "running_var"], "secret": ["state"]}


def test_one_rank_has_nothing_to_find() -> None:
    (found,) = worlds.run(1, found_on_ranks, counts=[10])
    assert found["silent"] == found["without snapshot"] == []
    assert found["changed"] == {}
