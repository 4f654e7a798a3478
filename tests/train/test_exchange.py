"""The exchange of gradients where ranks do not do the same: many buckets, idle ranks, changing parameters."""

import pytest
import torch
from torch import Tensor, nn

import worlds

DTYPE = torch.float64
DATA = torch.randn(10, 8, generator=torch.Generator().manual_seed(1), dtype=DTYPE)


def weights_of(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def agree(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) <= 1e-12 * float(b.abs().max())


def several_buckets(world, part: str = "whole") -> Tensor:
    """Layers of more than a bucket each, with norms between them; the last batch leaves ranks idle.

    `part="head"` trains the last layer only, whose gradients are there before the norms' backward.
    """
    torch.manual_seed(0)
    layers = [nn.Linear(8, 400), nn.BatchNorm1d(400), nn.Tanh(), nn.Linear(400, 400), nn.BatchNorm1d(400)]
    model = world.replicate(nn.Sequential(*layers, nn.Tanh(), nn.Linear(400, 1)).to(DTYPE))
    trained = model if part == "whole" else model[-1]
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    for batch in world.loader(DATA, batch_size=4):
        with world.step(optimizer) as step:
            step.backward(model(batch).square().sum(), len(batch))
    return weights_of(model)


@pytest.mark.parametrize("part", ["whole", "head"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_buckets_and_norms_do_not_get_into_each_others_way(size: int, part: str) -> None:
    reference = worlds.run(1, several_buckets, part=part)[0]
    assert agree(worlds.run(size, several_buckets, part=part)[0], reference)


class Branch(nn.Module):
    """Uses its extra layer on some ranks only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 200), nn.BatchNorm1d(200)
        self.side, self.last = nn.Linear(200, 200), nn.Linear(200, 1)

    def forward(self, x: Tensor, use_extra: bool) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        return self.last(torch.tanh(self.side(x)) if use_extra else x)


def branching(world) -> Tensor:
    torch.manual_seed(0)
    model = world.replicate(Branch().to(DTYPE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in world.loader(DATA, batch_size=4):
        with world.step(optimizer) as step:
            step.backward(model(batch, world.rank == 0).square().sum(), len(batch))
    return weights_of(model)


def test_a_layer_that_one_rank_alone_uses() -> None:
    ranks = worlds.run(3, branching)
    assert all(torch.equal(rank, ranks[0]) for rank in ranks)


def changing(world, change: str) -> Tensor:
    """Fine-tuning: a frozen backbone that is trained from the third step on, or a head that is replaced."""
    torch.manual_seed(0)
    model = world.replicate(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)).to(DTYPE))
    if change == "unfreeze":
        model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(world.loader(DATA, batch_size=3)):
        if number == 2 and change == "unfreeze":
            model[0].requires_grad_(True)
        if number == 2 and change == "replace":
            torch.manual_seed(9)
            model[2] = nn.Linear(6, 1).to(DTYPE)
            optimizer.param_groups[0]["params"] = list(model.parameters())
        if number == 2 and change == "add":
            torch.manual_seed(9)
            model.append(nn.Linear(1, 1).to(DTYPE))
            optimizer.add_param_group({"params": list(model[3].parameters()), "lr": 0.05})
        with world.step(optimizer, clip_norm=0.1) as step:
            step.backward(model(batch).square().sum(), len(batch))
    return weights_of(model)


@pytest.mark.parametrize("change", ["unfreeze", "replace", "add"])
def test_parameters_that_change_on_the_way(change: str) -> None:
    reference = worlds.run(1, changing, change=change)[0]
    for size in (2, 3):
        ranks = worlds.run(size, changing, change=change)
        assert agree(ranks[0], reference)
        assert all(torch.equal(rank, ranks[0]) for rank in ranks)


def weightless(world) -> Tensor:
    """The second batch has only targets that are ignored."""
    torch.manual_seed(0)
    model = world.replicate(nn.Linear(8, 3).to(DTYPE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, batch in enumerate(world.loader(DATA, batch_size=3, shuffle=False)):
        target = torch.full((len(batch),), -100 if number == 1 else 1)
        with world.step(optimizer) as step:
            loss = nn.functional.cross_entropy(model(batch), target, reduction="sum")
            step.backward(loss, (target >= 0).sum())
    return weights_of(model)


def test_a_step_without_any_weight_changes_nothing_but_momentum() -> None:
    reference = worlds.run(1, weightless)[0]
    assert torch.isfinite(reference).all()
    assert agree(worlds.run(2, weightless)[0], reference)


def skipping(world) -> Tensor:
    """The user's code raises in the second step, after backward, on all ranks, and goes on."""
    torch.manual_seed(0)
    model = world.replicate(nn.Sequential(nn.Linear(8, 400), nn.Tanh(), nn.Linear(400, 400)).to(DTYPE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(world.loader(DATA, batch_size=3)):
        try:
            with world.step(optimizer) as step:
                step.backward(model(batch).square().sum(), len(batch))
                if number == 1:
                    raise ValueError("not this batch")
        except ValueError:
            continue
    return weights_of(model)


def test_an_exception_in_a_step_leaves_the_weights_and_the_next_step_alone() -> None:
    reference = worlds.run(1, skipping)[0]
    assert agree(worlds.run(2, skipping)[0], reference)


def every_dtype(world) -> bool:
    dtypes = [torch.int16, torch.bool, torch.bfloat16, torch.complex64, torch.float64, torch.uint8]
    for dtype in dtypes:
        own = torch.full((2, 3), world.rank).to(dtype)
        if [part.real.double().mean().item() for part in world.gather(own)] != [
            float(torch.tensor(rank).to(dtype).real) for rank in range(world.size)
        ]:
            return False
        world.broadcast_(own, source=1)
        if not torch.equal(own, torch.ones(2, 3).to(dtype)):
            return False
    return True


def test_collectives_know_every_dtype() -> None:
    assert worlds.run(2, every_dtype) == [True, True]
