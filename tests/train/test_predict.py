"""Predictions of any structure: exactly once, in order, on any number of ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tasks
import worlds
from samestep.train.arrayfile import GrowingArray
from samestep.train.evaluate import eval_loader
from samestep.train.predict import predictions

SIZES = (1, 2, 3, 4)


def structured(model: nn.Module, batch: Any) -> dict[str, Any]:
    images = batch[0]
    first = images.flatten(1)[:, 0]
    return {
        "pair": (first, (first * 10).to(torch.int16)),
        "rag/ged": [torch.full((int(abs(x) * 3) + 1, 2), float(x)) for x in first],
    }


def predict(world, kind: str) -> dict[str, torch.Tensor]:
    outputs = {
        "structured": structured,
        "heads": lambda model, batch: (batch[0].sum((1, 2, 3)), batch[0].amax((1, 2, 3))),
        "wrong rows": lambda model, batch: torch.zeros(3),
        "list of heads": lambda model, batch: [torch.zeros(len(batch[0])), torch.zeros(len(batch[0]))],
    }[kind]
    task = tasks.image_task(predict=outputs, eval_batch_size=5)
    data = tasks.Images(11, augment=False)
    parts = list(predictions(task, world, nn.Identity(), eval_loader(task, world, data)))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("kind", ["structured", "heads"])
def test_in_the_order_of_the_data_set(kind: str) -> None:
    reference = worlds.run(1, predict, kind=kind)[0]
    images = tasks.Images(11, augment=False).images
    if kind == "heads":
        assert torch.equal(reference["output_0"], images.sum((1, 2, 3)))
    else:
        assert torch.equal(reference["pair_0"], images.flatten(1)[:, 0])
        assert reference["pair_1"].dtype == torch.int16
        assert len(reference["rag-ged.shapes"]) == 11
    for size in SIZES[1:]:
        for rank in worlds.run(size, predict, kind=kind):
            assert rank.keys() == reference.keys()
            assert all(torch.equal(rank[name], reference[name]) for name in reference)


@pytest.mark.parametrize(
    ("kind", "sentence"), [("wrong rows", "it needs one row an example"), ("list of heads", "as a tuple")]
)
def test_what_is_not_one_row_an_example_is_refused(kind: str, sentence: str) -> None:
    with pytest.raises(worlds.RankFailed, match=sentence):
        worlds.run(1, predict, kind=kind)


def test_a_growing_array_is_an_ordinary_one(tmp_path: Path) -> None:
    rows = np.arange(3 * 1000, dtype=np.float32).reshape(1000, 3)
    file = GrowingArray(tmp_path / "rows.npy")
    for start in range(0, 1000, 7):
        file.append(rows[start : start + 7])
    file.close()
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), rows)
