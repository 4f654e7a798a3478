"""The example of CIFAR-10: repeated work is named and gets no speedup; images shared out are silent."""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from readme_commands import EXAMPLES, copied, said, shown_in, verified

NAME = "cifar_condor"
SHOWN = {shown.command: shown for shown in shown_in(NAME)}
CAUSES = {
    "samestep verify --gpus 1,2 -- python naive_ddp.py drawn 1": {"same-examples-on-every-rank"},
    "samestep verify --gpus 1,2 -- python data_parallel.py drawn 1": {"world-ignored"},
    "samestep verify --gpus 1,2 -- python ddp.py drawn 1": set(),
    "samestep verify task.py --gpus 1,2 --set folder=drawn --set epochs=1": set(),
}
"""What is found, by command."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the example, with its data drawn."""
    copy = copied(NAME, tmp_path_factory.mktemp("example"))
    assert said("python draw.py drawn", copy) == (0, "")
    return copy


def causes_in(text):
    return set(re.findall(r"^\d+\. ([\w-]+)$", text, re.MULTILINE))


def test_records_are_read_as_they_were_written_and_broken_files_are_refused(folder, tmp_path):
    cifar10 = runpy.run_path(str(folder / "cifar.py"))["cifar10"]
    images, classes = cifar10(folder / "drawn", train=True).tensors
    raw = (folder / "drawn" / "data_batch_1.bin").read_bytes()
    assert len(raw) == 3073 * len(classes) and images.shape == (len(classes), 3, 32, 32)
    # the blue value at row 1, column 2 of the image at position 5
    value = raw[5 * 3073 + 1 + 2 * 1024 + 1 * 32 + 2]
    assert int(classes[5]) == raw[5 * 3073] and images[5, 2, 1, 2].item() == np.float32((value - 127.5) / 64)
    (tmp_path / "test_batch.bin").write_bytes(raw[:-1])
    for is_training, match in ((False, "no whole records"), (True, "no files of CIFAR-10's")):
        with pytest.raises(SystemExit, match=match):
            cifar10(tmp_path, train=is_training)


@pytest.mark.parametrize("command", CAUSES)
def test_repeated_work_is_named_and_its_cures_are_silent(command, folder, capsys):
    code, text = verified(command, folder, capsys)
    assert causes_in(text) == CAUSES[command], text
    assert code == bool(CAUSES[command])
    SHOWN[command].assert_said(text)


def test_no_speedup_is_printed_for_repeated_work(folder):
    (command,) = (each for each in SHOWN if each.startswith("samestep scale"))
    code, text = said(command, folder)
    SHOWN[command].assert_said(text)
    assert code == 2 and "duplicated-work" in causes_in(text)
    _, right = said(command.replace("naive_ddp", "ddp"), folder)
    assert "duplicated-work" not in causes_in(right) and "refused" not in right, right


def test_accuracy_rises_with_repeated_work_and_not_with_the_same_step(folder):
    for command, shown in SHOWN.items():
        if command.startswith("samestep train"):
            code, text = said(command, folder)
            assert code == 0, text
            shown.assert_said(text)


def test_jobs_have_the_files_that_the_page_shows_and_run_where_nothing_else_is(folder, tmp_path):
    (command,) = (each for each in SHOWN if each.startswith("samestep submit"))
    code, text = said(command, folder)
    assert code == 0, text
    SHOWN[command].assert_said(text)
    here = command.replace("--environment env.yml ", "--cpu --set epochs=1 ")
    assert run_job(said(f"{here} --json", folder)[1], tmp_path / "whole") == 0
    # the control: the module that the task imports is not sent
    assert (
        run_job(said(f"{here.replace('--transfer cifar.py ', '')} --json", folder)[1], tmp_path / "lacking")
        != 0
    )


def run_job(text, scratch):
    """The exit code of the job on one rank, in a folder that has what was sent and nothing else."""
    files = {Path(path).name: kept for path, kept in json.loads(text)["files"].items() if "1-rank" in path}
    scratch.mkdir()
    for name in ("run.sh", "request.json"):
        (scratch / name).write_text(files[name])
    (sent,) = re.findall(r"^transfer_input_files = (.*)$", files["submit.sub"], re.MULTILINE)
    for path in map(Path, sent.split(", ")[1:]):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, scratch / path.name)
    return subprocess.run(["sh", "run.sh", "0"], cwd=scratch, timeout=120, check=False).returncode


def test_scripts_differ_in_what_the_page_says():
    naive, right = ((EXAMPLES / NAME / name).read_text().splitlines() for name in ("naive_ddp.py", "ddp.py"))
    assert [line.strip() for line in right[1:] if line not in naive] == [
        "from torch.utils.data import DataLoader, DistributedSampler",
        "sampler = DistributedSampler(train)",
        "loader = DataLoader(train, batch_size=32 // dist.get_world_size(), sampler=sampler)",
        "sampler.set_epoch(epoch)",
    ]
