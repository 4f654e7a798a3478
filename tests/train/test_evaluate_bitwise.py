"""Values of an evaluation have the same bits on any number of ranks in bitwise mode."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAUROC
from torchmetrics.regression import MeanSquaredError

import samestep
import worlds
from samestep.train.evaluate import computed, eval_loader, evaluate, make_metrics, update_metrics
from samestep.train.session import Session

NUM_EXAMPLES, BATCH = 131, 19  # the last of 7 batches has 17 examples, which 4 and 8 do not divide
WORLDS = [1, 2, 3, 4]


def table(num_examples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randint(-2, 3, (num_examples, 6), generator=generator).float()
    labels = torch.randint(2, (num_examples,), generator=generator)
    # in float32, of magnitudes over two decades: rounding depends on the order of adding
    scales = 10 ** (2 * torch.rand(num_examples, generator=generator))
    return TensorDataset(inputs, labels, scales)


def scaled_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> samestep.Loss:
    inputs, labels, scales = batch
    outputs = model(inputs).squeeze(1)
    # in float64, as sums of float32 would be exact in the float64 that they are added up in
    each = nn.functional.binary_cross_entropy_with_logits(outputs.double(), labels.double(), reduction="none")
    return samestep.Loss((each * scales.double()).sum(), scales.double().sum(), outputs=outputs)


class Whole(nn.Module):
    """A model whose outputs are whole numbers, and so exact: whatever differs comes from the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([[1.0, -1.0, 1.0, 2.0, -1.0, 1.0]]))
        self.drop = nn.Dropout(0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(self.drop(inputs), self.weights)


def make_task() -> samestep.Task:
    return samestep.Task(
        model=Whole,
        train_data=[0],
        loss=scaled_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        metrics={"auroc": BinaryAUROC, "mse": MeanSquaredError, "mean": MeanMetric},
        score=lambda outputs, batch: (outputs * batch[2], batch[1]),
        batch_size=BATCH,
        steps=1,
    )


def evaluated(world: Session, shards: int | None, num_examples: int) -> dict[str, str]:
    world.set_mode(shards)
    task = make_task()
    model = world.replicate(task.model())
    loader, metrics = eval_loader(task, world, table(num_examples)), make_metrics(task, world)
    values = evaluate(task, world, model, loader, metrics)
    assert values == evaluate(task, world, model, loader, metrics)  # it begins with empty sums
    return {name: value.hex() for name, value in values.items()}


@pytest.mark.parametrize("shards", [4, 8])
@pytest.mark.parametrize("num_examples", [NUM_EXAMPLES, 2 * BATCH + 1])
def test_same_bits_on_any_world(shards: int, num_examples: int) -> None:
    alone = worlds.run(1, evaluated, shards=shards, num_examples=num_examples)[0]
    assert set(alone) == {"loss", "auroc", "mse", "mean"}
    for size in WORLDS[1:]:
        assert worlds.run(size, evaluated, shards=shards, num_examples=num_examples) == [alone] * size


def sums_by_rank(world: Session, shards: int) -> list[str]:
    """The sum of losses after each batch, added up by rank first and not by shard."""
    world.set_mode(shards)
    task = make_task()
    model = world.replicate(task.model()).eval()
    losses = [scaled_loss(model, batch).sum for batch in eval_loader(task, world, table(NUM_EXAMPLES))]
    totals = []
    for stop in range(1, 8):
        total = torch.zeros((), dtype=torch.float64)
        for loss in losses[: stop * len(losses) // 7]:
            total += loss.detach()
        world.sum_(total).wait()
        totals.append(float(total).hex())
    return totals


def test_shards_added_up_by_rank_have_other_bits_on_other_worlds() -> None:
    # negative control, for the sums of the first 1, 2, … 7 batches
    by_world = [worlds.run(size, sums_by_rank, shards=4)[0] for size in (1, 2, 4)]
    assert len({tuple(totals) for totals in by_world}) > 1


def test_fast_mode_has_the_same_values_with_other_bits() -> None:
    by_world = [worlds.run(size, evaluated, shards=None, num_examples=NUM_EXAMPLES) for size in WORLDS]
    assert all(values == [values[0]] * len(values) for values in by_world)  # all ranks of a world agree
    fast = [values[0] for values in by_world]
    bitwise = worlds.run(1, evaluated, shards=8, num_examples=NUM_EXAMPLES)[0]
    # negative control: the order of adding matters
    assert len({(values["loss"], values["mean"]) for values in fast}) > 1
    for values in fast:
        # A sum of n positive float32 terms ("mse") has a relative error of at most (n - 1) u, u = 2**-24, in
        # any order; 8 more cover the arithmetic of a term. Two such sums make a quotient, and two of these
        # are compared. Those of "loss" are float64; those of "mean" have signs and may cancel.
        tolerance = 2 * 2 * (NUM_EXAMPLES + 8) * 2.0**-24
        for name in ("loss", "mse"):
            expected = float.fromhex(bitwise[name])
            assert float.fromhex(values[name]) == pytest.approx(expected, rel=tolerance), name


def trained(world: Session, shards: int | None) -> dict[str, float]:
    """Metrics of training: updated by share, as the training loop does, and computed at the end."""
    world.set_mode(shards)
    task = make_task()
    model = world.replicate(task.model()).eval()
    metrics = make_metrics(task, world)
    for batch in eval_loader(task, world, table(NUM_EXAMPLES)):
        update_metrics(task, metrics, scaled_loss(model, batch), None, batch)
    return computed(world, metrics)


def test_metrics_of_training_have_the_same_bits_on_any_world() -> None:
    alone = worlds.run(1, trained, shards=4)[0]
    for size in WORLDS[1:]:
        assert worlds.run(size, trained, shards=4) == [alone] * size


def test_a_task_without_metrics_makes_none() -> None:
    (empty,) = worlds.run(1, made_without)
    assert empty == {}


def made_without(world: Session) -> dict[str, Any]:
    task = samestep.Task(
        model=lambda: nn.Linear(1, 1),
        train_data=[0],
        loss=scaled_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=1,
        steps=1,
    )
    return make_metrics(task, world)
