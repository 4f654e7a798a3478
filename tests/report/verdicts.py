"""Folders to make pages of: verdicts as `samestep verify` writes them, records as `samestep train` does."""

import json
import math
from pathlib import Path
from typing import Any

from samestep.observations import FORMAT, ObservationWriter, observations_path
from samestep.observed import VERSION, Machine, Start
from samestep.record import RecordWriter

QUANTITIES = ("examples", "inputs", "forward", "gradient", "learning rate", "buffer", "weight", "metric")


def mark_of(quantity: str, step: int, first: int) -> str:
    if step >= first and (step > first or quantity not in ("examples", "inputs")):
        return "same" if quantity in ("examples", "inputs", "learning rate") else "different"
    return "same" if quantity in ("examples", "inputs", "learning rate") else "equal"


def verdict(num_steps: int = 24, first: int = 3, **changes: Any) -> dict[str, Any]:
    """A model with batch norms that nobody synchronises, on two and four ranks."""
    table = [
        [quantity, step, mark_of(quantity, step, first)]
        for quantity in QUANTITIES
        for step in range(1, num_steps + 1)
        if quantity != "metric" or step % 8 == 0
    ]
    runs = [
        ("reference", 1, "finished", 4.21, "as it is"),
        ("repeat", 1, "finished", 4.05, "the same once more"),
        ("2-ranks", 2, "finished", 5.3, "as it is"),
        ("1-rank-given-2", 1, "finished", 4.4, "given the batches of 2 ranks"),
        ("1-rank-turned-2", 1, "finished", 4.3, "the same batches in another order"),
        ("2-ranks-alike-frozen", 2, "finished", 5.2, "norms frozen"),
        ("1-rank-given-2-frozen", 1, "finished", 4.3, "given the batches of 2 ranks, norms frozen"),
        ("4-ranks", 4, "cut", 20.6, "as it is"),
    ]
    return {
        "verdict": "different",
        "worlds": [1, 2, 4],
        "first_difference": {
            "step": first,
            "quantity": "forward",
            "name": "backbone.layer1.0.bn1",
            "ranks": [0, 1],
            "size": 0.18734,
            "tolerance": 3.2e-6,
            "reference": 1.00003421,
            "candidate": 0.81269421,
        },
        "findings": [
            {
                "cause": "norm-not-synchronised",
                "message": "BatchNorm2d backbone.layer1.0.bn1 (and 7 more) normalises with the examples of "
                "its own rank, not with the global batch.",
                "evidence": {
                    "layers": ["backbone.layer1.0.bn1 (BatchNorm2d)", "backbone.layer1.0.bn2 (BatchNorm2d)"],
                    "collectives_in_forward": 0,
                    "first_difference": "step 3, forward backbone.layer1.0.bn1",
                },
                "fix": "convert the model with torch.nn.SyncBatchNorm.convert_sync_batchnorm before it is "
                "wrapped, or replicate it with samestep.init().replicate (train.py:41)",
            },
            {
                "cause": "unequal-batches-averaged",
                "message": "In step 24 ranks have 12 and 4 examples, and their means count the same.",
                "evidence": {"step": 24, "examples": {"0": 12, "1": 4}, "where": "train.py:58", "none": None},
                "fix": "weigh each rank by its number of examples, or drop the last batch (train.py:33)",
            },
        ],
        "remarks": [
            "the program draws random numbers in its forward pass (dropout): it was off in the runs compared",
            "steps after 24 were not looked into",
        ],
        "table": table,
        "runs": [
            dict(zip(("name", "world_size", "status", "seconds", "why"), run, strict=True)) for run in runs
        ],
        "command": ["verify", "--gpus", "1,2,4", "--", "python", "train.py", "--epochs", "1"],
        "later": {"a field of a later Samestep": True},
    } | changes


def write_verdict(folder: Path, value: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A folder as `samestep verify --out` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verdict.json").write_text(json.dumps(verdict(**changes) if value is None else value))
    for name, rank in (("reference", 0), ("2-ranks", 0)):
        writer = ObservationWriter(observations_path(folder / name, rank))
        writer.write(
            Start(format=FORMAT, version=VERSION, samestep="0.1.0", rank=rank, world_size=None, attempt=0,
                  program=("train.py", "--epochs", "1"), steps_in_full=24, most_bytes=2**20, python="3.11.7",
                  host="node7", pid=1, time=0.0)
        )  # fmt: skip
        writer.write(
            Machine(torch="2.13.0", num_threads=1 if name == "reference" else 2, device="cpu",
                    is_deterministic=False, matmul_precision="highest")
        )  # fmt: skip
        writer.close()
    return folder


def write_record(folder: Path, num_steps: int = 300, *, is_finished: bool = True, nan_at: int = 0) -> Path:
    """A folder as `samestep train --out` leaves it, of a run that may go on."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = RecordWriter(folder, 0)
    writer.describe(
        command="train", target="task.py", overrides=["lr=0.1"], script=[], mode="bitwise", shards=8,
        threads=1, world_size=2, devices=["cpu", "cpu"], seed=0, batch_size=64, precision="fp32",
        conditions={"instructions": "AVX2"},
    )  # fmt: skip
    for step in range(1, num_steps + 1):
        loss = math.nan if step == nan_at else 2.3 * math.exp(-step / 90) + 0.05 * math.sin(step * 1.7)
        writer.step(step, epoch=(step - 1) // 100, examples=64 * step, loss=loss, lr=0.1 * min(1, step / 50))
        if step % 100 == 0:
            writer.epoch(step // 100, step=step, values={"train/loss": loss, "valid/accuracy": 1 - loss / 3})
    writer.finding(
        {"cause": "norm-is-local", "message": "A norm is local.", "evidence": {}, "fix": "use ours"}
    )
    if is_finished:
        writer.finish(
            {"status": "finished", "command": "train", "mode": "bitwise", "world_size": 2, "seconds": 75.2,
             "digest": "c1" * 32, "steps": num_steps, "examples": 64 * num_steps, "epochs": num_steps // 100,
             "values": {"valid/accuracy": 0.97}, "findings": [], "restarts": 0}
        )  # fmt: skip
    writer.close()
    return folder
