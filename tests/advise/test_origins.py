"""Which cells may be put together: one job on one machine, and a word where they were not measured alike."""

import json
from pathlib import Path
from typing import Any

import pytest

from samestep.advise.advice import Question, advise
from samestep.advise.cells import Cell, checked
from samestep.advise.context import NOTHING
from samestep.advise.origins import of_conditions
from samestep.advise.reading import read
from samestep.errors import ConfigError


def cell(gpus: int, **values: Any) -> Cell:
    return Cell(gpus=gpus, step_s=1.0, **values)


def test_a_refusal_says_which_cells_are_of_which() -> None:
    cells = [cell(1, machine="cuda A100"), cell(2, machine="cuda A100"), cell(4, machine="cuda T4")]
    with pytest.raises(ConfigError, match=r"2 machines \(cuda A100: 1, 2 GPUs; cuda T4: 4 GPUs\)"):
        checked(cells)
    assert len(checked(cells[:2])) == 2


def test_a_device_of_unknown_model_goes_with_any_of_its_kind() -> None:
    """Older records know the kind only."""
    assert len(checked([cell(1, machine="cuda"), cell(2, machine="cuda A100")])) == 2
    with pytest.raises(ConfigError, match="2 machines"):
        checked([cell(1, machine="cpu"), cell(2, machine="cuda A100")])
    with pytest.raises(ConfigError, match="2 machines"):
        checked([cell(1, machine="cuda"), cell(2, machine="cuda A100"), cell(4, machine="cuda T4")])


def test_a_name_that_is_missing_in_one_line_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"one without a name: 1 GPU; .*name it in every line"):
        checked([cell(1), cell(2, job="a.py")])


def test_what_was_not_alike_is_a_finding() -> None:
    alike = [cell(1, conditions={"cores": "8"}), cell(2, conditions={"cores": "8", "torch": "2.13"})]
    assert of_conditions(alike) == []
    (finding,) = of_conditions([*alike, cell(4, conditions={"cores": "16"})])
    assert finding.cause == "not-measured-alike"
    assert "cores: 16, 8" in finding.message
    assert finding.evidence == {"cores": ["16", "8"]}


OLD = {"devices": ["cpu"], "num_cores": 8, "torch": "2.13.0", "num_gpus": 0, "threads_per_rank": 1}
NEW = OLD | {"cpu_model": "EPYC 7543", "memory_bytes": 270_000_000_000, "gpus_per_node": 0}


def sweep(folder: Path, gpus: int, environment: dict[str, Any], **values: Any) -> Path:
    row = {"gpus": gpus, "batch_size": 32, "batch_per_gpu": 32 / gpus, "status": "measured",
           "step_s": 0.4 / gpus**0.8, "examples_per_s": 80.0 * gpus**0.8}  # fmt: skip
    content = {"cells": [row], "gaps": [], "target": "train.py", "environment": environment} | values
    if "devices" in values:
        row["devices"] = values["devices"]
    folder.mkdir(parents=True)
    (folder / "scale.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (NEW | {"cpu_model": "Xeon 6248"}, "cpu EPYC 7543: 1 GPU; cpu Xeon 6248: 2 GPUs"),
        (NEW | {"devices": ["cuda NVIDIA A100"]}, "cpu EPYC 7543: 1 GPU; cuda NVIDIA A100: 2 GPUs"),
    ],
)
def test_sweeps_of_other_machines_are_refused(tmp_path: Path, other: dict[str, Any], told: str) -> None:
    folders = [sweep(tmp_path / "a", 1, NEW), sweep(tmp_path / "b", 2, other)]
    with pytest.raises(ConfigError, match=told):
        checked(read(folders))


@pytest.mark.parametrize("first", [OLD, NEW])
def test_sweeps_of_one_machine_are_put_together_also_with_older_ones(
    tmp_path: Path, first: dict[str, Any]
) -> None:
    folders = [sweep(tmp_path / "a", 1, first), sweep(tmp_path / "b", 2, NEW)]
    cells = read(folders)
    assert len(checked(cells)) == 2
    assert of_conditions(cells) == []


def test_the_devices_of_a_cell_count_more_than_those_of_its_sweep(tmp_path: Path) -> None:
    a100, t4 = "cuda NVIDIA A100", "cuda Tesla T4"
    folders = [
        sweep(tmp_path / "a", 1, NEW | {"devices": [a100]}, devices={a100: 1}),
        sweep(tmp_path / "b", 2, NEW | {"devices": [a100, t4]}, devices={t4: 2}),
    ]
    assert [each.machine for each in read(folders)] == [a100, t4]
    with pytest.raises(ConfigError, match="2 machines"):
        checked(read(folders))


@pytest.mark.parametrize(
    ("command", "is_same"),
    [
        (["scale", "--gpus", "1,2", "--batch", "64", "train.py"], True),
        (["scale", "--gpus", "1", "--set", "model=large", "train.py"], False),
        (["scale", "--gpus", "1", "--mode", "bitwise", "--shards", "8", "train.py"], False),
        (["scale", "--gpus", "1", "--", "python", "train.py", "--set", "x"], True),
    ],
)
def test_what_a_command_changes_in_a_program_makes_it_another_job(
    tmp_path: Path, command: list[str], is_same: bool
) -> None:
    plain = sweep(tmp_path / "a", 1, NEW, command=["scale", "--gpus", "1", "train.py"])
    other = sweep(tmp_path / "b", 2, NEW, command=command)
    assert len({each.job for each in read([plain, other])}) == (1 if is_same else 2)


def test_an_edited_program_and_other_hosts_are_said_in_the_advice(tmp_path: Path) -> None:
    folders = [sweep(tmp_path / "a", 1, NEW), sweep(tmp_path / "b", 2, NEW | {"num_cores": 16})]
    for folder, digest in zip(folders, ("aaaa", "bbbb"), strict=True):
        (folder / "sweep.json").write_text(json.dumps({"settings": {"text of the program": digest}}))
    advice = advise(read(folders), NOTHING, Question(worlds=[1, 2, 4]))
    (finding,) = (each for each in advice.findings if each.cause == "not-measured-alike")
    assert "cores: 16, 8" in finding.message and "text of the program: aaaa, bbbb" in finding.message
