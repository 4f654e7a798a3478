"""What the first step shows is said by name, and correct twins stay silent."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import worlds
from samestep.nn import moments

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class HandNorm(nn.Module):
    """A norm with hand-written statistics of its own rank."""

    def __init__(self) -> None:
        super().__init__()
        self.momentum = 0.1
        self.register_buffer("running_mean", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(0)
        self.running_mean.lerp_(mean.detach(), self.momentum)
        return x - mean


class HandNormTwin(HandNorm):
    """The same over all ranks."""

    samestep_synchronised = True

    def forward(self, x: Tensor) -> Tensor:
        mean, _, _ = moments(x, (0,))
        self.running_mean.lerp_(mean.detach(), self.momentum)
        return x - mean


class Centred(nn.Module):
    """Keeps a statistic under a name that tells nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.memory.copy_(x.detach().mean(0))
        return x


class Constants(nn.Module):
    """Buffers called like statistics that never change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("std", torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class OwnCall(nn.BatchNorm1d):
    """A subclass that passes torch's own forward by."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps
        )


class OwnCallTwin(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.3, self.training)


LAYERS: dict[str, tuple[Any, str | None]] = {
    "hand-written norm": (HandNorm, "norm-not-synchronised"),
    "hand-written norm, synchronised": (HandNormTwin, None),
    "unknown statistic": (Centred, "statistics-differ-between-ranks"),
    "constants": (Constants, None),
    "batch norm by another way": (lambda: OwnCall(4), "norm-never-exchanged"),
    "batch norm by super": (lambda: OwnCallTwin(4), None),
    "plain batch norm": (lambda: nn.BatchNorm1d(4), None),
    "functional dropout": (Functional, "randomness-depends-on-rank"),
    "dropout layer": (lambda: nn.Dropout(0.3), None),
}


def causes(world, kind: str) -> list[tuple[str, str]]:
    model = nn.Sequential(nn.Linear(4, 4), LAYERS[kind][0](), nn.Linear(4, 1)).double()
    world.on_finding = lambda finding: None
    model = world.replicate(model, from_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in world.loader(DATA, batch_size=8):
        with world.step(optimizer) as step:
            step.backward(model(batch).square().sum(), len(batch))
    world.on_finding = None
    return [(finding.cause, finding.message) for finding in world.findings]


@pytest.mark.parametrize("kind", LAYERS)
def test_on_two_ranks(kind: str) -> None:
    ranks = worlds.run(2, causes, kind=kind)
    assert ranks[0] == ranks[1]
    expected = LAYERS[kind][1]
    found = [cause for cause, _ in ranks[0]]
    assert (expected in found) if expected else (found == []), ranks[0]
    if expected and expected != "randomness-depends-on-rank":
        assert all(message.startswith("1 (") for _, message in ranks[0]), "the layer is called 1 in the model"


@pytest.mark.parametrize("kind", [k for k, (_, cause) in LAYERS.items() if cause != "norm-not-synchronised"])
def test_one_rank_has_nothing_to_say(kind: str) -> None:
    assert worlds.run(1, causes, kind=kind) == [[]]


def early_or_mean(world, case: str) -> list[str]:
    model = world.replicate(nn.Linear(4, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    world.on_finding = lambda finding: None
    for batch in world.loader(DATA, batch_size=8):
        noisy = batch + torch.randn_like(batch) if case == "noise before the step" else batch
        with world.step(optimizer) as step:
            losses = model(noisy).square()
            step.backward(*((losses.mean(), 1) if case == "mean" else (losses.sum(), len(batch))))
    world.on_finding = None
    return [finding.cause for finding in world.findings]


@pytest.mark.parametrize(
    ("case", "expected"),
    [("noise before the step", ["randomness-depends-on-rank"]), ("mean", ["weight-is-one"]), ("right", [])],
)
def test_what_people_do_in_their_loops(case: str, expected: list[str]) -> None:
    assert worlds.run(2, early_or_mean, case=case) == [expected] * 2


def made_between(world) -> list[float]:
    """A second model, made after the first was trained."""
    causes_of_first = early_or_mean(world, "right")
    assert causes_of_first == []
    return world.replicate(nn.Linear(3, 2)).weight.flatten().tolist()


def test_what_is_made_after_a_step_is_made_alike() -> None:
    ranks = worlds.run(3, made_between)
    assert ranks[0] == ranks[1] == ranks[2]
    assert worlds.run(1, made_between)[0] == ranks[0]
