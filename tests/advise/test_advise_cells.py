"""Cells: what is taken, what is merged, and what is refused with a sentence that helps."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samestep.advise.cells import Cell, checked
from samestep.advise.named import cell_of, cells_of
from samestep.advise.reading import read, read_csv, read_sweep
from samestep.errors import ConfigError, RecordError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gpus": 0, "step_s": 1.0}, "gpus is 0"),
        ({"gpus": 1.5, "step_s": 1.0}, "gpus is 1.5"),
        ({"gpus": math.nan, "step_s": 1.0}, "gpus is nan"),
        ({"gpus": 2, "step_s": 0.0}, "step_s of 2 GPUs is 0.0, but must be above 0"),
        ({"gpus": 2, "step_s": -1.0}, "is -1.0"),
        ({"gpus": 2, "step_s": float("nan")}, "is nan"),
        ({"gpus": 2, "step_s": float("inf")}, "is inf"),
        ({"gpus": 2, "examples_per_s": -3.0}, "examples_per_s of 2 GPUs"),
        ({"gpus": 2, "step_s": 1.0, "batch_per_gpu": 0.0}, "batch_per_gpu of 2 GPUs is 0.0"),
        ({"gpus": 2, "step_s": 1.0, "nodes": 3}, "2 GPUs cannot be on 3 nodes"),
        ({"gpus": 2, "step_s": 1.0, "gpus_per_node": -1}, "gpus_per_node is -1"),
        ({"gpus": 2, "step_s": 1.0, "accumulate": 0}, "accumulate is 0"),
        ({"gpus": 0, "batch_size": 8, "step_s": 1.0}, "gpus is 0"),
        (
            {"gpus": 2, "step_s": 1.0, "step_low_s": -0.1, "step_high_s": 1.2},
            "-0.1 to 1.2 is no interval of it",
        ),
        (
            {"gpus": 2, "step_s": 1.0, "step_low_s": 0.9, "step_high_s": float("inf")},
            "0.9 to inf is no interval of it",
        ),
        ({"gpus": 2, "step_s": 1.0, "step_low_s": 1.2, "step_high_s": 0.9}, "1.2 to 0.9 is no"),
        # an interval beside its step, and one in milliseconds
        ({"gpus": 2, "step_s": 1.0, "step_low_s": 1.1, "step_high_s": 1.2}, "around step_s"),
        ({"gpus": 2, "step_s": 0.21, "step_low_s": 205.0, "step_high_s": 215.0}, "must be in seconds"),
        ({"gpus": 2, "step_s": 0.21, "step_high_s": 1e5}, "within 10 times of it"),
        ({"gpus": 2, "step_s": 1.0, "cpu_utilisation": 41.0}, "41 % are 0.41"),
        ({"gpus": 2, "step_s": 1.0, "cpu_utilisation": -1.0}, "from 0 to 1"),
        ({"gpus": 2}, "needs gpus, and step_s or examples_per_s"),
        ({"step_s": 2.0}, "needs gpus"),
        ({"gpus": 1, "step_s": "0.5"}, "step_s of a cell is '0.5', but must be a number"),
        ({"gpus": 1, "step_s": 0.5, "nodes": "1"}, "nodes of a cell is '1', but must be a number"),
        ({"gpus": 1, "step_s": 0.5, "step_low_s": "0.4"}, "step_low_s of a cell is '0.4'"),
        ({"gpus": 1, "step_s": 0.5, "cpu_utilisation": "0.7"}, "cpu_utilisation of a cell is '0.7'"),
        ({"gpus": "1", "step_s": 0.5}, "gpus of a cell is '1', but must be a number"),
        ((1, 0.5), r"a cell is \(1, 0.5\), but must have names"),
    ],
)
def test_values_that_cannot_be(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cell_of(values)


def test_a_throughput_is_a_time() -> None:
    assert cell_of({"gpus": 4, "batch_per_gpu": 8, "examples_per_s": 64.0}).step_s == 0.5
    assert cell_of({"gpus": 4, "batch_size": 32, "examples_per_s": 64.0}).step_s == 0.5
    assert cell_of({"gpus": 4, "examples_per_s": 8.0}).step_s == 0.5


def test_one_time_in_two_units_is_one_time() -> None:
    assert cell_of({"gpus": 1, "step_s": 0.5, "step_ms": 500}).step_s == 0.5
    with pytest.raises(ConfigError, match=r"step_s 0\.5 and step_ms 0\.5, which are not the same time"):
        cell_of({"gpus": 1, "step_s": 0.5, "step_ms": 0.5})


def test_whole_numbers_of_tables_in_memory() -> None:
    """They have them as 4.0, and a place that says nothing as None."""
    cell = cell_of({"gpus": 4.0, "nodes": 2.0, "step_s": 0.5})
    assert (repr(cell.gpus), repr(cell.nodes)) == ("4", "2")
    shrinking = [{"gpus": n, "step_s": s, "examples_per_s": None} for n, s in ((1, 0.8), (4, 0.23))]
    with pytest.raises(ConfigError, match="has no batch"):
        cells_of(shrinking)


def test_cells_with_and_without_a_batch_are_of_no_one_job() -> None:
    with pytest.raises(ConfigError, match=r"cell of 4 GPUs in 0\.9 s has no batch, but others have"):
        checked(
            [cell_of({"gpus": 1, "batch_per_gpu": 64, "step_s": 0.8}), cell_of({"gpus": 4, "step_s": 0.9})]
        )


def test_repeats_are_put_together_with_all_that_they_tell() -> None:
    parts = [{"exchange not hidden": 0.1, "input pipeline": 0.0}, {"exchange not hidden": 0.4}]
    one, other = (
        Cell(gpus=2, step_s=s, parts_s=known, cpu_utilisation=use, speedup_around=(0.9, 1.1))
        for s, known, use in zip((1.0, 1.6), parts, (0.2, 0.4), strict=True)
    )
    (merged,) = checked([one, other])
    assert merged.step_s == pytest.approx(1.6**0.5)
    assert merged.cpu_utilisation == pytest.approx(0.3)
    # a tenth and a quarter of the step
    assert merged.parts_s == pytest.approx({"exchange not hidden": 0.175 * 1.6**0.5, "input pipeline": 0.0})
    # its speedups were over two cells, and of a repeat without parts nobody knows them
    assert merged.speedup_around is None
    assert checked([one, replace(other, parts_s={})])[0].parts_s == {}


def test_milliseconds_are_noticed() -> None:
    good = {"gpus": 2, "batch_per_gpu": 16, "step_s": 0.5, "examples_per_s": 64.0}
    assert cell_of(good).step_s == 0.5
    with pytest.raises(ConfigError, match="step_s looks like milliseconds"):
        cell_of(good | {"step_s": 500.0})
    with pytest.raises(ConfigError, match="see which of them is right"):
        cell_of(good | {"step_s": 1.0})
    with pytest.raises(ConfigError, match="give all of them in seconds"):
        checked(cells_of([{"gpus": 1, "step_s": 0.5}, {"gpus": 2, "step_s": 510.0}]))
    # nor are microseconds taken for a job that became so much slower; the control is one that did
    with pytest.raises(ConfigError, match=r"a factor of 1020000 an example; give all of them in seconds"):
        checked(cells_of([{"gpus": 1, "step_s": 0.5}, {"gpus": 2, "step_s": 510_000.0}]))
    assert len(checked(cells_of([{"gpus": 1, "step_s": 0.5}, {"gpus": 2, "step_s": 50.0}]))) == 2


def test_one_place_with_other_turns_is_refused() -> None:
    cells = [Cell(gpus=2, step_s=1.0, batch_per_gpu=64, accumulate=turns) for turns in (2, 4)]
    with pytest.raises(ConfigError, match=r"2 GPUs with 64 examples each were measured with accumulate 2, 4"):
        checked(cells)
    assert len(checked([cells[0], cells[0]])) == 1


def test_cells_of_several_jobs_or_machines_are_refused() -> None:
    one = Cell(gpus=1, step_s=1.0, job="a.py", machine="A100")
    with pytest.raises(ConfigError, match=r"2 jobs \(a.py: 1 GPU; b.py: 2 GPUs\)"):
        checked([one, Cell(gpus=2, step_s=1.0, job="b.py", machine="A100")])
    with pytest.raises(ConfigError, match="2 machines"):
        checked([one, Cell(gpus=2, step_s=1.0, job="a.py", machine="T4")])
    assert len(checked([one, Cell(gpus=2, step_s=1.0, job="a.py", machine="A100")])) == 2


def test_a_batch_is_told_for_all_or_for_none() -> None:
    one, two = {"gpus": 1, "step_s": 1.0}, {"gpus": 2, "step_s": 1.0}
    with pytest.raises(ConfigError, match=r"'gpus': 2, 'step_s': 1.0} has no batch, but others have"):
        cells_of([one | {"batch_size": 32}, two])
    for both in ([one, two], [one | {"batch_size": 32}, two | {"batch_per_gpu": 16}]):
        assert len(cells_of(both)) == 2


def test_a_batch_that_nobody_said_is_not_shared_out() -> None:
    """As in a file: steps that are so much shorter are of smaller shares."""
    cells = [{"gpus": 1, "step_s": 0.8}, {"gpus": 2, "step_s": 0.43}]
    with pytest.raises(ConfigError, match=r"has no batch, and a step takes 0\.8 s on 1 GPU and 0\.43 s on 2"):
        cells_of(cells)
    # the control: examples a second tell by themselves
    assert len(cells_of([{"gpus": n, "examples_per_s": 60.0 * n} for n in (1, 2)])) == 2


@pytest.mark.parametrize("name", ["batch", "global_batch", "local_batch_size"])
def test_a_batch_by_another_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"has {name}, which is not known: name it batch_size if"):
        cell_of({"gpus": 2, "step_s": 1.0, name: 64})
    # beside one by its own name it says something else
    assert cell_of({"gpus": 2, "step_s": 1.0, name: 64, "batch_per_gpu": 8}).batch_per_gpu == 8


def test_batches_that_contradict_each_other_are_refused() -> None:
    both = {"gpus": 3, "step_s": 1.0, "batch_size": 64}
    assert cell_of(both | {"batch_per_gpu": 21}).batch_per_gpu == 21
    with pytest.raises(ConfigError, match="batch_per_gpu 64 have 192 examples, but batch_size says 64"):
        cell_of(both | {"batch_per_gpu": 64})


def test_jobs_and_machines_are_told_apart_by_the_names_that_tables_have() -> None:
    one, other = ({"gpus": n, "step_ms": 500, "model": m} for n, m in ((1, "a"), (2, "b")))
    assert cell_of(one | {"precision": "bf16", "gpu": "T4"}).job == "a, bf16"
    assert cell_of(one).step_s == 0.5
    with pytest.raises(ConfigError, match="job"):
        checked(cells_of([one, other]))


def test_what_a_table_in_memory_has_no_figure_for_is_not_said() -> None:
    found = cell_of({"gpus": np.int64(2), "step_s": np.float64(1.0), "nodes": math.nan, "accumulate": None})
    assert (found.nodes, found.accumulate) == (None, 1)
    # a time that is none is refused, not left out
    with pytest.raises(ConfigError, match="step_s of 2 GPUs is nan"):
        cell_of({"gpus": 2, "step_s": math.nan})


def test_no_cells_are_refused() -> None:
    with pytest.raises(ConfigError, match="no cell"):
        checked([])


def test_repeats_are_merged_and_cells_come_in_order() -> None:
    found = checked([Cell(gpus=2, step_s=1.0), Cell(gpus=1, step_s=3.0), Cell(gpus=2, step_s=1.96)])
    assert [cell.gpus for cell in found] == [1, 2]
    assert [cell.step_s for cell in found] == pytest.approx([3.0, 1.4])
    assert (found[1].step_low_s, found[1].step_high_s) == (1.0, 1.96)


def test_times_of_two_jobs_are_no_repeats() -> None:
    with pytest.raises(ConfigError, match=r"0\.2 s and 0\.8 s, which are no repeats"):
        checked([Cell(gpus=1, step_s=0.8), Cell(gpus=1, step_s=0.2), Cell(gpus=2, step_s=0.5)])


def test_a_csv_from_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\ufeffgpus, batch_per_gpu, examples_per_s, nodes, who\n1,32,100,,me\n16,32,1400,2,me\n")
    one, many = read_csv(path)
    assert (one.gpus, one.step_s, one.nodes) == (1, 0.32, None)
    assert (many.gpus, many.nodes) == (16, 2)
    assert many.step_s == pytest.approx(16 * 32 / 1400)
    path.write_text("gpus,step_s\n1,0.5\n2,fast\n")
    with pytest.raises(ConfigError, match=r"table.csv, line 3: step_s is 'fast'"):
        read_csv(path)
    with pytest.raises(RecordError, match="cannot be read"):
        read_csv(tmp_path / "none.csv")


def _sweep(folder: Path, **values: Any) -> Path:
    rows = [
        {"gpus": 1, "batch_size": 32, "batch_per_gpu": 32.0, "status": "measured", "step_s": 0.4,
         "step_low_s": 0.39, "step_high_s": 0.41, "examples_per_s": 80.0, "cpu_utilisation": 0.2},
        {"gpus": 2, "batch_size": 32, "batch_per_gpu": 16.0, "status": "measured", "step_s": 0.22,
         "step_low_s": 0.21, "step_high_s": 0.23, "examples_per_s": 145.5, "cpu_utilisation": 0.4},
        {"gpus": 4, "batch_size": 32, "batch_per_gpu": 8.0, "status": "failed", "step_s": None},
    ]  # fmt: skip
    parts = [{"name": "exchange not hidden", "seconds": 0.02, "low": 0.0, "high": 0.04}]
    gaps = [{"gpus": 2, "batch_size": 32, "ideal_s": 0.2, "measured_s": 0.22, "parts": parts}]
    folder.mkdir()
    content = {"cells": rows, "gaps": gaps, "target": "train.py", "environment": {"devices": ["T4"]}} | values
    (folder / "scale.json").write_text(json.dumps(content))
    return folder


def test_the_folder_of_a_sweep(tmp_path: Path) -> None:
    one, two = read_sweep(_sweep(tmp_path / "a"))
    assert (one.gpus, one.step_s, one.cpu_utilisation, one.parts_s) == (1, 0.4, 0.2, {})
    assert two.parts_s == {"exchange not hidden": 0.02}
    assert two.job == "train.py"
    assert 0.02 < two.relative_deviation < 0.03


def test_a_sweep_tells_how_sure_its_speedups_are(tmp_path: Path) -> None:
    row = {
        "gpus": 2,
        "batch_size": 64,
        "step_s": 0.5,
        "speedup": 0.5,
        "speedup_low": 0.0,
        "speedup_high": 1.0,
    }
    (tmp_path / "scale.json").write_text(json.dumps({"cells": [row | {"gpus": 1, "step_s": 0.3}, row]}))
    one, two = read(sorted([tmp_path]))
    assert one.speedup_around is None and two.speedup_around == (0.0, 2.0)
    assert two.relative_deviation == pytest.approx(1 / 1.96)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"num_gpus": 4}, 4),
        ({"num_gpus": 2, "gpus_per_node": 8}, 8),
        ({"num_gpus": 0, "gpus_per_node": 0}, None),
        ({"num_gpus": None}, None),
    ],
)
def test_the_machine_of_a_sweep_tells_the_size_of_a_node(
    tmp_path: Path, environment: dict[str, int | None], said: int | None
) -> None:
    """GPUs that a job may not use count; on a machine without any, ranks on CPUs say nothing about nodes."""
    cells = read_sweep(_sweep(tmp_path / "a", environment=environment))
    assert [cell.gpus_per_node for cell in cells] == [said, said]


def test_several_folders_are_of_one_job(tmp_path: Path) -> None:
    folders = [_sweep(tmp_path / "a"), _sweep(tmp_path / "b"), _sweep(tmp_path / "c", target="other.py")]
    assert len(checked(read(folders[:2]))) == 2
    with pytest.raises(ConfigError, match="2 jobs"):
        checked(read(folders))


def test_a_folder_without_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"has no scale.json"):
        read_sweep(tmp_path)
    (tmp_path / "scale.json").write_text("{")
    with pytest.raises(RecordError, match="cannot be read"):
        read_sweep(tmp_path)
