"""The comparison with published series says 0 of a series that was simulated, and not of another."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.advise.cluster import read_cluster
from samestep.advise.simulate import Step, simulate

ROOT = Path(__file__).parents[2]
COLUMNS = (
    "series_id", "source", "model", "hardware", "n_gpus", "n_nodes", "batch_per_gpu", "accum_steps", "metric",
    "value", "note",
)  # fmt: skip


def compared(folder: Path, step_s: dict[int, float]) -> list[str]:
    """What is printed of a series of steps on DGX A100."""
    table = folder / "series.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for gpus, seconds in step_s.items():
            row = dict.fromkeys(COLUMNS, "")
            row |= {"series_id": "s", "source": "siasosp23", "model": "yolov3", "hardware": "Sia dgx"}
            row |= {"n_gpus": gpus, "metric": "time_s", "value": seconds}
            writer.writerow(row)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulate", str(table)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if "Sia, YOLOv3" in line)
    return [cell.strip() for cell in re.split("[│┃]", line)[2:-1]]


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_simulated_series_is_told_from_a_slower_one(tmp_path, factor):
    cluster, step = read_cluster("dgx-a100"), Step(compute_s=0.01, gradient_bytes=62e6 * 4)
    truth = {gpus: simulate(step, cluster, gpus).step_s for gpus in (1, 8, 16, 64)}
    slowed = {gpus: seconds * (factor if gpus > 8 else 1) for gpus, seconds in truth.items()}
    number, cells, unchanged, from_gpu, from_node, _, _, between = compared(tmp_path, slowed)
    assert (number, cells) == ("1", "2")
    due = "0.0 / 0" if factor == 1.0 else "50.0 / 50 (-50)"
    assert from_gpu.startswith(due)
    assert from_node.startswith(due)
    assert unchanged != from_node
    assert between == ("100%" if factor == 1.0 else "0%")
