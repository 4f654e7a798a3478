"""Each rank updates its slice: the bits of whole updates, a part of the memory, checkpoints for any world."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import tasks
import worlds
from samestep.errors import ConfigError
from samestep.train import slices
from samestep.train.optimizer_state import optimizer_state
from samestep.train.session import Session
from samestep.train.state import digest
from samestep.train.update import _ELEMENTWISE

SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "amsgrad": True, "fused": True},
    "AdamW": {"lr": 0.01, "foreach": True},
    "RMSprop": {"lr": 0.01, "momentum": 0.9, "centered": True},
    "Adagrad": {"lr": 0.05, "initial_accumulator_value": 0.1},
}


class Odd(nn.Module):
    """Layers of odd sizes, a convolution in channels-last layout, a scalar, a frozen and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 7, 3, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.inner = nn.Linear(7, 33)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(33), requires_grad=False)
        self.unused = nn.Linear(5, 3)
        self.sometimes = nn.Linear(7, 10)
        self.out = nn.Linear(33, 10)

    def forward(self, x: Tensor, *, is_detoured: bool) -> Tensor:
        pooled = torch.tanh(self.conv(x)).mean((2, 3))
        logits: Tensor = self.out(torch.tanh(self.inner(pooled) * self.scale) * self.frozen)
        return logits + self.sometimes(pooled) if is_detoured else logits


def make(world: Session, optimizer: str, settings: dict[str, Any]) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(3)
    model = world.replicate(Odd())
    parameters = list(model.parameters())
    groups = [{"params": parameters[::2], "lr": 0.02}, {"params": parameters[1::2]}]
    return model, getattr(torch.optim, optimizer)(groups, **settings)


def take_steps(
    world: Session, model: nn.Module, optimizer: Optimizer, steps: range, update: Any, **options: Any
) -> list[float | None]:
    norms = []
    for number in steps:
        generator = torch.Generator().manual_seed(100 * number + world.rank)
        x, y = torch.randn(5, 3, 6, 6, generator=generator), torch.randint(10, (5,), generator=generator)
        # some parameters count as large then, the one in channels-last layout among them, and some as small
        with (
            patch.object(slices, "_LARGE_BYTES", 700),
            world.step(optimizer, update=update, **options) as step,
        ):
            # a parameter that only some ranks use, and in the first step none does
            logits = model(x, is_detoured=number > 0 and world.rank == number % world.size)
            step.backward(cross_entropy(logits, y, reduction="sum"), 5)
        norms.append(step.totals.grad_norm)
    return norms


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def state_of(world: Session, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    states = world.stepper(optimizer).optimizer_states()
    return {"model": dict(model.state_dict()), "optimizer": optimizer_state(optimizer, model, states)}


def both_ways(
    world: Session, optimizer: str, settings: dict[str, Any], **options: Any
) -> list[tuple[str, list[float | None], int]]:
    """Digest, norms and elements of the optimizer's state on this rank: whole, and sharded."""
    results = []
    for update in ("whole", "sharded"):
        model, made = make(world, optimizer, settings)
        norms = take_steps(world, model, made, range(4), update, **options)
        held = sum(v.numel() for e in made.state.values() for v in e.values() if isinstance(v, Tensor))
        results.append((digest(state_of(world, model, made)), norms, held))
    return results


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("optimizer", sorted(kind.__name__ for kind in _ELEMENTWISE))
def test_slices_give_the_bits_of_whole_updates(optimizer: str, size: int) -> None:
    settings = SETTINGS.get(optimizer, {"lr": 0.01})
    rows = worlds.run(size, both_ways, optimizer=optimizer, settings=settings)
    assert len({digest for whole, sharded in rows for digest, _, _ in (whole, sharded)}) == 1


@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_keeps_its_part_of_the_state(size: int) -> None:
    rows = worlds.run(size, both_ways, optimizer="Adam", settings={"lr": 0.01})
    whole = rows[0][0][2]
    held = [sharded[2] for _, sharded in rows]
    # slices are equal but for padding, up to 64 elements a parameter, in each of Adam's two moments
    assert max(held) <= whole / size + 2 * 64 * 14
    assert sum(held) >= whole


@pytest.mark.parametrize("size", [2, 3])
def test_clipping_is_by_the_norm_of_all_slices(size: int) -> None:
    rows = worlds.run(size, clipped)
    for (whole, whole_norms), (sharded, sharded_norms), (loose, _) in rows:
        # norms add up ~600 squares in another order, and four steps carry the difference on
        tolerance = 600 * 4 * torch.finfo(torch.float32).eps
        assert sharded_norms == pytest.approx(whole_norms, rel=tolerance)
        assert float((sharded - whole).abs().max()) <= tolerance * float(whole.abs().max())
        assert float((loose - whole).abs().max()) > 10 * tolerance, "clipping changed nothing"
    assert len({tuple(sharded.tolist()) for _, (sharded, _), _ in rows}) == 1


def clipped(world: Session) -> list[tuple[Tensor, list[float | None]]]:
    results = []
    for update, clip_norm in (("whole", 0.1), ("sharded", 0.1), ("sharded", None)):
        model, optimizer = make(world, "SGD", {"lr": 0.05})
        norms = take_steps(world, model, optimizer, range(4), update, clip_norm=clip_norm)
        results.append((weights_of(model), norms))
    return results


def in_half_precision(world: Session, update: str, overflows_on: int | None) -> tuple[Tensor, float]:
    model, optimizer = make(world, "SGD", {"lr": 0.05, "momentum": 0.9})
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    take_steps(world, model, optimizer, range(1), update, scaler=scaler)
    if world.rank == overflows_on:
        model.out.register_full_backward_hook(  # type: ignore[union-attr]
            lambda module, inputs, outputs: (inputs[0] * float("inf"),)
        )
    take_steps(world, model, optimizer, range(1, 3), update, scaler=scaler)
    return weights_of(model), scaler.get_scale()


def test_a_scaler_decides_once_for_all_slices() -> None:
    for overflows_on in (None, 0, 1):
        (whole, scale), _ = worlds.run(2, in_half_precision, update="whole", overflows_on=overflows_on)
        for weights, its_scale in worlds.run(
            2, in_half_precision, update="sharded", overflows_on=overflows_on
        ):
            assert its_scale == scale == (1024.0 if overflows_on is None else 256.0)
            assert torch.equal(weights, whole)


def switching(world: Session) -> list[str]:
    """Whole, sharded, another set of parameters, a hook that looks on, and sharded again."""
    digests = []
    for settings in (("whole",) * 5, ("sharded", "whole", "auto", "sharded", "sharded")):
        model, optimizer = make(world, "Adam", {"lr": 0.01})
        for number, update in enumerate(settings):
            if number == 3:
                model.inner.requires_grad_(False)  # type: ignore[operator]
            if number == 4:
                handle = optimizer.register_step_post_hook(lambda *_: None)
            take_steps(world, model, optimizer, range(number, number + 1), update)
        handle.remove()
        take_steps(world, model, optimizer, range(5, 6), settings[-1])
        digests.append(digest(state_of(world, model, optimizer)))
    return digests


def test_the_state_follows_when_slices_come_and_go() -> None:
    assert len({digest for row in worlds.run(2, switching) for digest in row}) == 1


def own_loop(world: Session, folder: str, steps: int, update: str) -> tuple[int, str]:
    model = world.replicate(tasks.Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = world.loader(tasks.Images(), batch_size=10)
    checkpoints = world.checkpoints(folder, model=model, optimizer=optimizer, loader=loader)
    begun_at = done = checkpoints.restore()
    while done < steps:
        for batch in loader:
            with world.step(optimizer, update=update) as step:  # type: ignore[arg-type]
                step.backward(*tasks.image_loss(model, batch))
            done += 1
            if done == steps:
                break
    checkpoints.save()
    checkpoints.wait()
    return begun_at, digest(state_of(world, model, optimizer))


def test_checkpoints_know_no_slices(tmp_path: Path) -> None:
    expected = {size: _continued(tmp_path / f"{size}", (size, "whole"), (size, "whole")) for size in (1, 2)}
    for first, rest in [
        ((2, "sharded"), (2, "whole")),
        ((2, "whole"), (2, "sharded")),
        ((2, "sharded"), (2, "sharded")),
    ]:
        assert _continued(tmp_path / f"{first}-{rest}", first, rest) == expected[2]
    # three ranks add slices in another order than gloo adds sums, so both begin in slices
    sliced = _continued(tmp_path / "sliced", (3, "sharded"), (1, "sharded"))
    assert sliced == _continued(tmp_path / "whole", (3, "sharded"), (1, "whole"))


def _continued(folder: Path, first: tuple[int, str], rest: tuple[int, str]) -> str:
    worlds.run(first[0], own_loop, folder=str(folder), steps=4, update=first[1])
    rows = worlds.run(rest[0], own_loop, folder=str(folder), steps=7, update=rest[1])
    assert {begun_at for begun_at, _ in rows} == {4}
    assert len({digest for _, digest in rows}) == 1
    return rows[0][1]


class Sign(torch.optim.SGD):
    """A class that nothing is known of."""


def not_sharded(world: Session, kind: str, update: str) -> tuple[list[str], bool]:
    model = world.replicate(nn.Linear(6, 6))
    optimizer = Sign(model.parameters()) if kind == "unknown" else torch.optim.Adafactor(model.parameters())
    with world.step(optimizer, update=update) as step:  # type: ignore[arg-type]
        step.backward(model(torch.ones(2, 6)).sum(), 2)
    return [finding.message for finding in world.findings], model.weight.grad is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["unknown", "Adafactor"])
def test_what_cannot_be_sharded_is_whole_and_says_so_if_asked(kind: str) -> None:
    for messages, has_gradient in worlds.run(2, not_sharded, kind=kind, update="sharded"):
        assert has_gradient
        assert len(messages) == 1 and "is not known to treat every element" in messages[0]
    assert worlds.run(2, not_sharded, kind=kind, update="auto") == [([], True)] * 2


def chosen_by_auto(world: Session, width: int) -> bool:
    model = world.replicate(nn.Linear(width, 1024, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.step(optimizer, update="auto") as step:
        step.backward(model(torch.ones(2, width)).sum(), 2)
    return model.weight.grad is None


def test_auto_shards_what_is_large() -> None:
    assert worlds.run(2, chosen_by_auto, width=2048) == [True, True]
    assert worlds.run(2, chosen_by_auto, width=2047) == [False, False]


def state_dict_of_a_slice(world: Session) -> None:
    model, optimizer = make(world, "SGD", {"lr": 0.05, "momentum": 0.9})
    take_steps(world, model, optimizer, range(1), "sharded")
    with pytest.raises(ConfigError, match=r"each of 2 ranks holds a slice"):
        optimizer.state_dict()
    take_steps(world, model, optimizer, range(1, 2), "whole")
    assert optimizer.state_dict()["state"]


def test_a_slice_of_the_state_is_not_handed_out_as_the_whole() -> None:
    worlds.run(2, state_dict_of_a_slice)


def moved_weights(world: Session) -> list[str]:
    digests = []
    for update in ("whole", "sharded"):
        model, optimizer = make(world, "SGD", {"lr": 0.05, "momentum": 0.9})
        take_steps(world, model, optimizer, range(2), update)
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        take_steps(world, model, optimizer, range(2, 4), update)
        digests.append(digest(state_of(world, model, optimizer)))
    return digests


def test_weights_may_move_in_memory() -> None:
    assert len({digest for row in worlds.run(2, moved_weights) for digest in row}) == 1
