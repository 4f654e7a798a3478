"""N ranks take the same step as one: gradients, weights, buffers, rates, norms, metrics, predictions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tasks
import worlds
from samestep.record import RecordWriter
from samestep.train.evaluate import eval_loader
from samestep.train.loop import Loop
from samestep.train.predict import predictions
from samestep.train.training import Training

WORLDS = (2, 3, 4)


def run_task(world, folder: str, task_name: str = "image_task", **changes: Any) -> dict[str, Any]:
    """Train a task of tests/tasks.py and return everything that must not depend on the world."""
    task = getattr(tasks, task_name)(**changes)
    world.reset(task.seed)
    out = Path(folder) / f"world-{world.size}"
    out.mkdir(exist_ok=True)
    training = Training(task, world, out, record := RecordWriter(out, world.rank))
    result = Loop(training).run()
    record.close()
    steps = (
        [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
        if world.is_first
        else []
    )
    outputs = [
        rows["output"]
        for rows in predictions(task, world, training.model, eval_loader(task, world, task.valid_data()))
    ]
    return {
        "state": {name: value.clone() for name, value in training.model.state_dict().items()},
        "momentum": {
            name: training.optimizer.state[p]["momentum_buffer"].clone()
            for name, p in training.model.named_parameters()
            if "momentum_buffer" in training.optimizer.state[p]
        },
        "losses": torch.tensor([row["loss"] for row in steps], dtype=torch.float64),
        "rates": [row["lr"] for row in steps],
        "norms": torch.tensor([row.get("grad_norm", 0.0) for row in steps], dtype=torch.float64),
        "examples": [row["examples"] for row in steps],
        "values": result["values"],
        "predictions": torch.cat(outputs),
        "findings": result["findings"],
        "digest": result["digest"],
    }


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-300)) if a.numel() else 0.0


def assert_same(candidate: dict[str, Any], reference: dict[str, Any], tolerance: float) -> None:
    assert candidate["examples"] == reference["examples"]
    assert candidate["rates"] == reference["rates"]
    for kind in ("state", "momentum"):
        assert candidate[kind].keys() == reference[kind].keys()
        for name in reference[kind]:
            assert relative(candidate[kind][name], reference[kind][name]) <= tolerance, (kind, name)
    for name in ("losses", "norms", "predictions"):
        assert candidate[name].shape == reference[name].shape
        assert relative(candidate[name], reference[name]) <= tolerance, name
    assert candidate["values"].keys() == reference["values"].keys()
    for name, value in reference["values"].items():
        assert abs(candidate["values"][name] - value) <= tolerance * max(1.0, abs(value)), name
    assert candidate["findings"] == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate": 2},
        {"shuffle": False, "clip_norm": None},
        {"ema_decay": 0.9},
        {"workers": 2},
    ],
    ids=["plain", "accumulate", "ordered", "ema", "workers"],
)
def test_float64_agrees_to_1e12(tmp_path: Path, changes: dict[str, Any]) -> None:
    reference = worlds.run(1, run_task, folder=str(tmp_path), **changes)[0]
    for size in WORLDS:
        ranks = worlds.run(size, run_task, folder=str(tmp_path), **changes)
        assert_same(ranks[0], reference, tolerance=1e-12)
        assert len({rank["digest"] for rank in ranks}) == 1, "replicas drifted apart"


def test_float32_agrees_within_rounding(tmp_path: Path) -> None:
    # A sum of n terms in any order errs by at most n·ε relative to the sum of magnitudes (Higham, 2002,
    # section 4.2). Here n = 10 examples × 9 places, and a step passes 4 layers forward and backward, each
    # with such a sum; errors of earlier steps are carried along, which 20 steps can add up.
    tolerance = 20 * 8 * 90 * torch.finfo(torch.float32).eps
    arguments = {"folder": str(tmp_path), "dtype": torch.float32}
    reference = worlds.run(1, run_task, **arguments)[0]
    for size in WORLDS:
        assert_same(worlds.run(size, run_task, **arguments)[0], reference, tolerance)
