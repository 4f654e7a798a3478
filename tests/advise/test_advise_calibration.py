"""Calibration: intervals made from some series hold as often as they say on others of their kind."""

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samestep.advise.calibrate import calibrated, competition, main, usable
from samestep.advise.calibration import LEVELS, Calibration, shipped
from samestep.advise.places import Places
from samestep.advise.series import Series, read_tables
from samestep.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent


def made_up(num_series: int, seed: int, source: str = "made up") -> list[Series]:
    """Jobs that lose a part of their own with each doubling, and something at random."""
    generator = np.random.default_rng(seed)
    gpus = np.array([1, 2, 4, 8, 16])
    found = []
    for index in range(num_series):
        loss, noise = generator.gamma(2.0, 0.02), generator.choice([0.005, 0.02])
        step_s = np.exp(loss * np.log2(gpus) + generator.normal(0, noise, len(gpus)))
        places = Places.of(gpus, [1, 1, 1, 1, 2])
        found.append(Series(f"{source} {index}", source, "model", False, places, step_s))
    return found


def held(calibration: Calibration, series: list[Series], level: float) -> float:
    results: list[bool] = []
    for each in series:
        entered = competition(each)
        for given in (2, 3, 4):
            low, high = calibration.interval(entered.outlook(calibration.learnt, given), level)
            results += list((low <= np.log(each.step_s[given:])) & (np.log(each.step_s[given:]) <= high))
    return float(np.mean(results))


@pytest.fixture(scope="module")
def learnt() -> Calibration:
    return calibrated(made_up(150, seed=1))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_intervals_hold_what_they_say_on_series_that_were_not_seen(learnt: Calibration, level: float) -> None:
    others = made_up(150, seed=2)
    # forecasts of one series are alike, so it is the series that count: three standard deviations of two
    # shares of 150 each
    slack = 3 * np.sqrt(2 * level * (1 - level) / 150)
    assert held(learnt, others, level) == pytest.approx(level, abs=slack)


def test_narrower_intervals_hold_less(learnt: Calibration) -> None:
    """The negative control: coverage is not there by itself."""
    narrow = dataclasses.replace(learnt, ratios=tuple(ratio / 10 for ratio in learnt.ratios))
    assert held(narrow, made_up(60, seed=2), 0.8) < 0.4


def test_the_shipped_one_is_whole() -> None:
    found = shipped()
    assert len(found.ratios) == len(LEVELS)
    assert list(found.ratios) == sorted(found.ratios)
    assert found.ratios[0] < 0 < found.ratios[-1]
    assert sum(found.sources.values()) > 700
    assert Calibration.from_json(json.loads(json.dumps(found.to_json()))) == found


def _table(path: Path, series: list[Series]) -> Path:
    names = [
        "source",
        "model",
        "hardware",
        "n_gpus",
        "n_nodes",
        "metric",
        "value",
        "scaling",
        "series_id",
        "note",
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*names, "note"], restval="")
        writer.writeheader()
        for each in series:
            for gpus, nodes, step_s in zip(each.places.gpus, each.places.nodes, each.step_s, strict=True):
                writer.writerow(
                    {"source": each.source, "model": each.model, "n_gpus": int(gpus), "n_nodes": int(nodes),
                     "metric": "time_s", "value": step_s, "scaling": "weak", "series_id": each.name}
                )  # fmt: skip
    return path


def test_the_command_makes_the_file_from_a_table(tmp_path: Path) -> None:
    series = made_up(20, seed=1)
    table = _table(tmp_path / "table.csv", series)
    main([str(table), str(tmp_path / "made.json")])
    made = Calibration.from_json(json.loads((tmp_path / "made.json").read_text()))
    assert made.sources == {"made up": 20}
    assert made == calibrated(usable(read_tables(table)))


def test_a_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("gpus,step_s\n1,2\n")
    with pytest.raises(ConfigError, match="no table of scaling series"):
        read_tables(tmp_path / "table.csv")


def test_throughputs_and_nodes_of_a_table(tmp_path: Path) -> None:
    rows = [("1", "10"), ("2", "19"), ("16", "140")]
    lines = [f"x,m,8x V100,{n},throughput,{value},,weak,s1," for n, value in rows]
    lines += [f"x,m,8x V100,{n},throughput,{value},,strong,s2,suspect: odd" for n, value in rows]
    header = "source,model,hardware,n_gpus,metric,value,n_nodes,scaling,series_id,note"
    (tmp_path / "table.csv").write_text("\n".join([header, *lines]))
    weak, strong = read_tables(tmp_path / "table.csv")
    assert weak.step_s == pytest.approx([0.1, 2 / 19, 16 / 140])
    assert list(weak.places.nodes) == [1, 1, 2]
    assert strong.step_s == pytest.approx([0.1, 1 / 19, 1 / 140])
    assert strong.is_strong
    assert usable([weak, strong]) == [weak]


def test_turns_of_a_table(tmp_path: Path) -> None:
    rows = [("1", "10", "8"), ("4", "38", "2"), ("8", "70", "1")]
    lines = [f"x,m,8x V100,{n},throughput,{value},,strong(accum),s,,{turns}" for n, value, turns in rows]
    header = "source,model,hardware,n_gpus,metric,value,n_nodes,scaling,series_id,note,accum_steps"
    (tmp_path / "table.csv").write_text("\n".join([header, *lines]))
    (found,) = read_tables(tmp_path / "table.csv")
    assert list(found.places.turns) == [8, 2, 1]
    assert found.is_strong and found.places.is_at_once_fixed


def _benchmark(tmp_path: Path, series: list[Series]) -> dict[str, Any]:
    table = _table(tmp_path / "table.csv", series)
    command = [
        sys.executable,
        "-m",
        "benchmarks.advise",
        str(table),
        "--json",
        str(tmp_path / "figures.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads((tmp_path / "figures.json").read_text())
    for what, is_met in figures["verdicts"].items():
        assert f"{'yes' if is_met else 'NO '}  {what}" in done.stdout
    return figures


def test_the_benchmark_judges_each_source_by_the_others(tmp_path: Path) -> None:
    figures = _benchmark(tmp_path, [*made_up(15, 1, "a"), *made_up(15, 2, "b")])
    assert figures["forecasts"] == 30 * (3 + 2 + 1)
    assert figures["errors"]["ours"][0] < figures["errors"]["universal scalability"][0]
    assert 0.6 < figures["coverage"] < 0.95


def test_the_benchmark_says_when_a_single_law_is_better(tmp_path: Path) -> None:
    """The negative control: on series that are Amdahl's to the last digit nobody beats Amdahl."""
    exact = [
        dataclasses.replace(each, step_s=1 + 0.01 * (index + 1) * each.places.gpus)
        for source in "ab"
        for index, each in enumerate(made_up(5, 1, source))
    ]
    verdicts = _benchmark(tmp_path, exact)["verdicts"]
    assert not any(is_met for what, is_met in verdicts.items() if "every single law" in what)
