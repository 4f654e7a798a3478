"""Bad input on the real command line: one clear sentence, exit code 2, no traceback, nothing lost.

What is refused before ranks start (a port in use, a finished run) is tested in test_cli.py; the many ways to
name a target wrongly in test_target.py and test_config.py.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parent
BAD = TESTS / "bad_tasks.py"


def samestep(*arguments: object, limit_file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if limit_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_bytes, limit_file_bytes))

    return subprocess.run(
        [sys.executable, "-m", "samestep", *map(str, arguments)],
        capture_output=True, text=True, timeout=100, preexec_fn=limit, cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS), "COLUMNS": "1000"},
    )  # fmt: skip


def assert_refused(result: subprocess.CompletedProcess[str], *sentences: str) -> None:
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert "torch/distributed" not in result.stderr, "the launcher's own noise"
    for sentence in sentences:
        assert sentence in result.stderr
    assert result.stderr.count("error:") <= 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    result = samestep("train", f"{BAD}:good", "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 4
    return out


@pytest.mark.parametrize(
    ("target", "gpus", "sentences"),
    [
        ("missing.py", 1, ["missing.py"]),
        (f"{BAD}:goood", 1, ["goood", "good"]),
        (f"{BAD}:raises", 2, ["Rank 1 failed: ValueError: no such picture: cat.png", "bad_tasks.py:"]),
        (f"{BAD}:empty", 1, ["Empty is empty"]),
        (f"{BAD}:endless", 1, ["Endless", "without a length", "steps_per_epoch"]),
        (f"{BAD}:not_a_pair", 1, ["returned a tensor of shape ()", "sum of weights"]),
    ],
)
def test_targets_and_tasks(tmp_path: Path, target: str, gpus: int, sentences: list[str]) -> None:
    assert_refused(samestep("train", target, "--gpus", gpus, "--out", tmp_path / "run"), *sentences)


def test_batch_smaller_than_the_world(tmp_path: Path) -> None:
    result = samestep("train", f"{BAD}:good", "--gpus", 2, "--set", "batch_size=1", "--out", tmp_path / "run")
    assert_refused(result, "batch_size is 1 and the world has 2 ranks")


def test_a_typo_in_yaml(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("epochs: 1\noptimiser: {class: torch.optim.SGD, lr: 0.1}\n")
    assert_refused(
        samestep("train", config, "--out", tmp_path / "run"), "optimiser", "did you mean", "optimizer"
    )


def test_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = samestep("train", f"{BAD}:good", "--out", tmp_path / "file" / "run")
    assert_refused(result, str(tmp_path / "file"))


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the same error in the same place."""
    result = samestep("train", f"{BAD}:big", "--out", tmp_path / "run", limit_file_bytes=1_000_000)
    assert_refused(result, "The checkpoint of step 2 could not be", "File too large")
    assert not list((tmp_path / "run" / "checkpoints").glob(".tmp*"))


def test_no_checkpoint(tmp_path: Path) -> None:
    result = samestep(
        "predict", f"{BAD}:good", "--checkpoint", tmp_path / "nowhere", "--out", tmp_path / "out"
    )
    assert_refused(result, "nowhere", "nothing is there")


def test_a_checkpoint_of_another_model(trained: Path, tmp_path: Path) -> None:
    result = samestep("evaluate", f"{BAD}:other_model", "--checkpoint", trained, "--out", tmp_path / "out")
    assert_refused(result, "another model", "1.weight")


def test_a_damaged_checkpoint(tmp_path: Path, trained: Path) -> None:
    checkpoint = tmp_path / "step-000000004"
    checkpoint.mkdir()
    newest = sorted((trained / "checkpoints").glob("step-*"))[-1]
    for file in newest.iterdir():
        data = bytearray(file.read_bytes())
        if file.name == "model.safetensors":
            data[-1] ^= 1
        (checkpoint / file.name).write_bytes(data)
    result = samestep("evaluate", f"{BAD}:good", "--checkpoint", checkpoint, "--out", tmp_path / "out")
    assert_refused(result, "model.safetensors")


def test_evaluate_and_predict_on_two_ranks(trained: Path, tmp_path: Path) -> None:
    arguments = [f"{BAD}:good", "--checkpoint", trained / "best", "--gpus", 2, "--json", "--out"]
    evaluated = samestep("evaluate", *arguments, tmp_path / "evaluated")
    assert evaluated.returncode == 0, evaluated.stderr
    assert set(json.loads(evaluated.stdout)["values"]) == {"loss", "accuracy"}
    predicted = samestep("predict", *arguments, tmp_path / "predicted")
    assert predicted.returncode == 0, predicted.stderr
    answer = json.loads(predicted.stdout)
    assert answer["examples"] == 23
    assert np.load(answer["files"][0]).shape == (23, 3)
