"""Which stream a model draws from: one for each batch and rank, others for further steps on it."""

import torch
from torch import Tensor, nn

import worlds

DATA = torch.zeros(16, 2)


def drawn(world, *, steps_a_batch: int = 1, has_evaluation: bool = False, skip: int = 0) -> list[float]:
    """What is drawn between a batch and its step, and in each step; two epochs of two batches of 8."""
    model = world.replicate(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = world.loader(DATA, batch_size=8)
    if skip:
        loader.load_state({"epoch": 0, "step": skip, "draw": {"position": 8 * skip}})
    found: list[Tensor] = []
    for _ in range(2):
        for batch in loader:
            if has_evaluation:
                with world.evaluation():
                    torch.rand(())
            found.append(torch.rand(()))
            for _ in range(steps_a_batch):
                with world.step(optimizer) as step:
                    found.append(torch.rand(()))
                    step.backward(model(batch).sum(), len(batch))
    return [float(number) for number in found]


def test_ranks_batches_and_steps_have_numbers_of_their_own() -> None:
    ranks = worlds.run(2, drawn, steps_a_batch=3)
    numbers = [number for rank in ranks for number in rank]
    assert len(numbers) == len({*numbers}) == 2 * 4 * 4
    assert worlds.run(2, drawn, steps_a_batch=3) == ranks


def test_the_first_rank_draws_the_same_in_any_world() -> None:
    assert worlds.run(1, drawn)[0] == worlds.run(3, drawn)[0]


def test_who_goes_on_in_the_middle_draws_what_would_have_been_drawn() -> None:
    assert worlds.run(1, drawn, skip=1)[0] == worlds.run(1, drawn)[0][2:]


def test_an_evaluation_before_a_step_leaves_the_step_a_stream_of_its_own() -> None:
    (numbers,) = worlds.run(1, drawn, has_evaluation=True)
    assert len({*numbers[1::2]}) == 4
