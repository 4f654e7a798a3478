"""The comparison with published series: right about made-up ones, and what it says of real ones."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.advise.cluster import read_cluster
from samestep.advise.simulate import Step, simulate
from samestep.advise.worst_case import LEAST_ACHIEVED

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.simulate import PARTS, Held, choice, chosen_part, held_by_part

ROOT = Path(__file__).parents[2]
COLUMNS = (
    "series_id", "source", "model", "hardware", "n_gpus", "n_nodes", "batch_per_gpu", "accum_steps", "metric",
    "value", "note",
)  # fmt: skip


PUBLISHED = Path(__file__).with_name("several_nodes.csv")
"""Of each job that the benchmark knows, the first series by name; where it is from stands in it."""


def printed(table: Path, *, name: str) -> list[str]:
    """The cells of the line with that name."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulate", str(table)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if line.startswith(f"│ {name}"))
    return [cell.strip() for cell in re.split("[│┃]", line)[2:-1]]


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
    return printed(table, name="Sia, YOLOv3")


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_a_simulated_series_is_told_from_a_slower_one(tmp_path, factor):
    cluster, step = read_cluster("dgx-a100"), Step(compute_s=0.01, gradient_bytes=62e6 * 4)
    truth = {gpus: simulate(step, cluster, gpus).step_s for gpus in (1, 8, 16, 64)}
    slowed = {gpus: seconds * (factor if gpus > 8 else 1) for gpus, seconds in truth.items()}
    number, cells, unchanged, from_gpu, from_node, _, _, held, width = compared(tmp_path, slowed)
    assert (number, cells) == ("1", "2")
    due = "0.0 / 0" if factor == 1.0 else "90.0 / 90 (-90)"
    assert from_gpu.startswith(due)
    assert from_node.startswith(due)
    assert unchanged != from_node
    assert held == ("100%" if factor == 1.0 else "0%")
    assert float(width.removeprefix("×")) > 1


def test_published_steps_on_several_nodes_lie_between_best_and_worst():
    """Of 12 series; four of five are due, and cells of a series are held together or not: three deviations.

    The control is the best case alone: most of these steps are far from it.
    """
    _, cells, _, _, from_node, _, _, held, _ = printed(PUBLISHED, name="all")
    due = 0.8
    assert int(cells) == 59
    assert int(held.removesuffix("%")) / 100 >= due - 3 * (due * (1 - due) / 12) ** 0.5
    median_error = float(from_node.partition(" ")[0])
    assert median_error > 20


def held_from(least: dict[str, float], num_cells: int = 5) -> Held:
    """Sources whose links reach that part of their peak: parts up to it hold every cell, larger ones none."""
    return {
        source: {part: [part <= reached] * num_cells for part in PARTS} for source, reached in least.items()
    }


def test_the_part_is_the_most_that_holds_every_source():
    assert chosen_part(held_from({"a": 0.5, "b": 0.2})) == 0.2
    assert chosen_part(held_from({"a": 0.5})) == 0.5
    # nothing holds it: the least
    assert chosen_part(held_from({"a": 0.001})) == min(PARTS)
    # four of five cells are enough, three are not
    four, three = ([*([True] * count), *([False] * (5 - count))] for count in (4, 3))
    assert chosen_part({"a": dict.fromkeys(PARTS, four)}) == max(PARTS)
    assert chosen_part({"a": dict.fromkeys(PARTS, three)}) == min(PARTS)


def test_a_source_has_no_part_in_the_choice_it_is_judged_by():
    """The control is the choice by all: with it, the slow source would be held."""
    held = held_from({"fast": 0.5, "middle": 0.2, "slow": 0.05})
    assert chosen_part(held) == 0.05
    table = choice(held)
    parts, shares = (list(table.columns[index].cells) for index in (2, 3))
    assert parts == ["0.05", "0.05", "0.2", "0.05 by all"]
    assert shares == ["100%", "100%", "0%", "67%"]


def test_published_series_choose_the_part_that_is_shipped_or_a_smaller_one():
    """One series of each job: too few for the choice, but none of them asks for more than is shipped."""
    held = held_by_part(PUBLISHED)
    assert len(held) == 4
    assert chosen_part(held) <= LEAST_ACHIEVED
