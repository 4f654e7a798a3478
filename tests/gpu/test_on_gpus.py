"""The same step on GPUs: what the other tests show on CPU ranks, once with CUDA and NCCL."""

from pathlib import Path
from typing import Any

import pytest
import torch

import worlds
from samestep.record import RecordWriter
from samestep.train.loop import Loop
from samestep.train.training import Training

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two GPUs; CPU ranks run the same code in the other tests"
)


def run_task(
    world, folder: str, shards: int | None = None, **changes: Any
) -> tuple[str, torch.Tensor, list[Any]]:
    import tasks

    world.set_mode(shards)
    task = tasks.image_task(**changes)
    world.reset(task.seed)
    out = Path(folder) / f"world-{world.size}"
    out.mkdir(exist_ok=True)
    record = RecordWriter(out, world.rank)
    training = Training(task, world, out, record)
    result = Loop(training).run()
    record.close()
    weights = torch.nn.utils.parameters_to_vector(training.model.parameters()).detach().cpu()
    return training.model.norm.weight.device.type, weights, result["findings"]


@pytest.mark.parametrize("changes", [{}, {"accumulate": 2, "ema_decay": 0.9}], ids=["plain", "accumulate"])
def test_two_gpus_take_the_step_of_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    pools = {size: worlds.Pool(size, on_gpus=True) for size in (1, 2)}
    try:
        kind, expected, _ = pools[1].run(run_task, folder=str(tmp_path), **changes)[0]
        assert kind == "cuda"
        for _, weights, findings in pools[2].run(run_task, folder=str(tmp_path), **changes):
            assert findings == []
            assert float((weights - expected).abs().max() / expected.abs().max()) < 1e-10
    finally:
        for pool in pools.values():
            pool.close()


@pytest.mark.parametrize(
    "changes", [{}, {"dtype": torch.float32, "precision": "bf16"}], ids=["plain", "bf16"]
)
def test_two_gpus_have_the_bits_of_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    pools = {size: worlds.Pool(size, on_gpus=True) for size in (1, 2)}
    try:
        _, expected, _ = pools[1].run(run_task, folder=str(tmp_path), shards=8, **changes)[0]
        for _, weights, findings in pools[2].run(run_task, folder=str(tmp_path), shards=8, **changes):
            assert findings == []
            assert torch.equal(weights, expected)
    finally:
        for pool in pools.values():
            pool.close()
