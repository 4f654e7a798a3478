"""Checkpoints of a hand-written loop go on anywhere too."""

from pathlib import Path

import torch
from torch import nn

import tasks
import worlds


def own_loop(world, folder: str, steps: int) -> tuple[int, torch.Tensor, float]:
    """A user's loop: restores if it can, trains up to `steps` in all, saves at the end."""
    model = world.replicate(tasks.Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 9], 0.5)
    loader = world.loader(tasks.Images(), batch_size=10)
    checkpoints = world.checkpoints(
        folder, model=model, optimizer=optimizer, loader=loader, schedule=schedule
    )
    begun_at = done = checkpoints.restore()
    while done < steps:
        for batch in loader:
            with world.step(optimizer, schedule=schedule) as step:
                loss = tasks.image_loss(model, batch)
                step.backward(*loss)
            done += 1
            if done == steps:
                break
    checkpoints.save()
    checkpoints.wait()
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    return begun_at, weights, optimizer.param_groups[0]["lr"]


def test_in_the_middle_of_an_epoch_on_another_world(tmp_path: Path) -> None:
    _, expected, rate = worlds.run(1, own_loop, folder=str(tmp_path / "whole"), steps=12)[0]
    for first, rest in ((2, 3), (3, 1)):
        folder = str(tmp_path / f"{first}-{rest}")
        assert worlds.run(first, own_loop, folder=folder, steps=7)[0][0] == 0
        begun_at, weights, rest_rate = worlds.run(rest, own_loop, folder=folder, steps=12)[0]
        assert begun_at == 7
        assert rest_rate == rate == 0.01 * 0.25
        # Adam divides by the root of a second moment that may be near 0: a thousand times the rounding
        assert float((weights - expected).abs().max()) < 1e-9


def counted(world) -> tuple[int, int]:
    """Examples that a loop counts by itself over an epoch: those it has, and all that it is handed."""
    model = world.replicate(tasks.Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    had = handed = 0
    for batch in world.loader(tasks.Images(), batch_size=len(tasks.Images()) - 1):
        with world.step(optimizer) as step:
            step.backward(*tasks.image_loss(model, batch))
        handed += len(batch[0])
        had += len(batch[0]) if world.has_examples else 0
    return had, handed


def test_a_rank_without_examples_says_so() -> None:
    """The last step has one example; the other ranks are handed something to keep it company."""
    for size in (1, 2, 3):
        had, handed = map(sum, zip(*worlds.run(size, counted), strict=True))
        assert had == len(tasks.Images())
        assert (handed > had) == (size > 1)  # the control: counting all of it depends on the world
