"""Calls of loss functions, with what they count."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watching import seen, watching

from samestep.observed import Criterion, Trouble

LOGITS = torch.zeros(4, 3, requires_grad=True)
CLASSES = torch.tensor([0, 1, -100, 2])


@pytest.mark.parametrize(
    ("call", "kind", "reduction", "num_targets", "num_rows"),
    [
        (lambda: F.cross_entropy(LOGITS, CLASSES), "cross_entropy", "mean", 3, 4),
        (lambda: nn.CrossEntropyLoss(ignore_index=0)(LOGITS, CLASSES.abs() % 3),
         "cross_entropy", "mean", 3, 4),
        (lambda: F.cross_entropy(LOGITS, torch.ones(4, 3) / 3, reduction="sum"),
         "cross_entropy", "sum", 4, 4),
        (lambda: F.nll_loss(LOGITS, CLASSES, reduction="none"), "nll_loss", "none", 3, 4),
        (lambda: F.mse_loss(LOGITS, torch.ones(4, 3)), "mse_loss", "mean", 12, 4),
        (lambda: nn.L1Loss(reduction="sum")(LOGITS, torch.ones(4, 3)), "l1_loss", "sum", 12, 4),
        (lambda: F.binary_cross_entropy_with_logits(LOGITS, torch.ones(4, 3)),
         "binary_cross_entropy_with_logits", "mean", 12, 4),
        (lambda: F.kl_div(LOGITS, torch.ones(4, 3), reduction="batchmean"), "kl_div", "batchmean", 12, 4),
        (lambda: F.triplet_margin_loss(LOGITS, LOGITS + 1, LOGITS + 2), "triplet_margin_loss", "mean", 12, 4),
    ],
)  # fmt: skip
def test_each_kind_counts_its_targets(tmp_path, call, kind, reduction, num_targets, num_rows):
    with watching(tmp_path):
        call()
    (row,) = seen(tmp_path, Criterion)
    assert (row.kind, row.reduction, row.num_targets, row.num_rows) == (
        kind,
        reduction,
        num_targets,
        num_rows,
    )
    assert row.has_gradients and row.where.startswith("tests/probe/test_criteria.py:")


@pytest.mark.filterwarnings("ignore:size_average:UserWarning")
def test_the_old_way_to_ask_for_a_reduction(tmp_path):
    with watching(tmp_path):
        F.mse_loss(LOGITS, torch.ones(4, 3), False)
    assert [row.reduction for row in seen(tmp_path, Criterion)] == ["sum"]


def test_without_gradients_and_beyond_the_steps_in_full(tmp_path):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(tmp_path, steps=1):
        with torch.no_grad():
            F.cross_entropy(model(torch.ones(4, 3)), CLASSES)
        for _ in range(12):
            F.cross_entropy(model(torch.ones(4, 3)), CLASSES).backward()
            optimizer.step()
    assert [(row.step, row.has_gradients) for row in seen(tmp_path, Criterion)] == [
        (1, False), *((step, True) for step in range(1, 11)),
    ]  # fmt: skip


def test_calls_that_cannot_be_looked_at_work_as_ever(tmp_path):
    with watching(tmp_path):
        scripted = torch.jit.script(lambda_free)
        assert scripted(LOGITS, CLASSES) == F.cross_entropy(LOGITS, CLASSES)
        compiled = torch.compile(lambda_free, backend="eager", fullgraph=True)
        assert compiled(LOGITS, CLASSES) == F.cross_entropy(LOGITS, CLASSES)
        many = torch.func.vmap(F.cross_entropy)(LOGITS.detach(), CLASSES.abs() % 3)
        assert many.shape == (4,)
        with pytest.raises(TypeError):
            F.cross_entropy(LOGITS)
    assert seen(tmp_path, Trouble) == []


def lambda_free(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y)
