"""`samestep scale` from its words to its exit code; most ranks are forked from one process for all tests."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep import cli
from samestep.cli.scale import check_worlds, seconds_of
from samestep.errors import ConfigError, LaunchError
from samestep.launch.warm import Warm
from samestep.scale.program import digest_of, libraries_of
from samestep.scale.runs import read_runs

TRAIN = """
import os, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
size, rank = dist.get_world_size(), dist.get_rank()
START
data = TensorDataset(torch.randn(480, 64, generator=torch.Generator().manual_seed(1)))
torch.manual_seed(0)
sampler = DistributedSampler(data)
loader = DataLoader(data, 16 // (1 if "--grow" in sys.argv else size), sampler=sampler)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for epoch in range(100000):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
"""
QUICK = ("--gpus", "1,2", "--rounds", "1", "--seconds", "0.1", "--threads", "1")


@pytest.fixture(scope="module")
def warm():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        with Warm(threads=1, modules=("samestep.probe.timing",)) as start:
            yield start


@pytest.fixture
def scale(monkeypatch, capsys, tmp_path, warm):
    """Measure a script with the words given: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("samestep.cli.scale.Warm", lambda **settings: contextlib.nullcontext(warm))

    def run(text, *words, script=(), is_cold=False):
        with monkeypatch.context() as patch:
            if not is_cold:
                patch.setattr("samestep.report.scaling.Kept", warm)
            if text is not None:
                Path("train.py").write_text(text.replace("START", ""))
                words = [*QUICK, "--out", "out", *words, "--", "python", "train.py", *script]
            patch.setattr(sys, "argv", ["samestep", "scale", *words])
            with pytest.raises(SystemExit) as end:
                cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


def test_a_script_is_measured_and_goes_on_where_it_was(scale, warm):
    code, out, err = scale(TRAIN, "--json", is_cold=True)
    answer = json.loads(out)
    assert code in (0, 1), err  # a step of microseconds is not faster on two
    assert [(cell["gpus"], cell["batch_size"], cell["status"]) for cell in answer["cells"]] == [
        (1, 16, "measured"),
        (2, 16, "measured"),
    ]
    assert answer["gaps"][0]["parts"][0]["name"] == "smaller batch"
    assert answer["rounds"] == 1 and answer["threads_per_rank"] == 1 and not answer["is_weak"]
    assert answer["cells"][1]["start_s"] > 0.1 and answer["cells"][1]["steps_per_epoch"] == 30
    assert [curve["gpus"] for curve in answer["curves"]] == [1, 2]
    assert warm.remarks == []
    kept = json.loads(Path("out/scale.json").read_text())
    again = ["scale", *QUICK, "--", "python", "train.py"]
    # threads are named where the machine would have taken others
    assert kept["cells"] == answer["cells"] and sorted({*again, *kept["command"]}) == sorted(set(again))
    assert {"--rounds", "--seconds", "0.1"} < set(kept["command"]) and "--budget" not in kept["command"]
    assert len(read_runs(Path("out/cells.jsonl"))) == 6
    lines = (Path("out") / read_runs(Path("out/cells.jsonl"))[0].folder / "host.jsonl").read_text()
    assert all("busy_cores" in json.loads(line) for line in lines.splitlines())
    assert "where a step's time goes" in err and "1 thread a rank" in err

    # finished runs are not made again, and the answer is the same
    code, out, err = scale(TRAIN, "--json")
    assert json.loads(out)["cells"] == answer["cells"] and "run 1" not in err
    code, out, err = scale(TRAIN, "--rounds", "2")
    assert "run 7, round 2" in err and out in ("faster\n", "not faster\n", "too close to call\n")

    # nor with anything else than before
    code, _, err = scale(TRAIN + "\n", "--rounds", "2")
    assert code == 2 and "the text of the program has changed since" in err
    code, _, err = scale(TRAIN, "--threads", "2")
    assert code == 2 and "threads is 1 there and now 2" in err


def test_a_batch_of_each_rank_is_weak_scaling(scale):
    _, out, err = scale(TRAIN, "--json", script=["--grow"])
    answer = json.loads(out)
    assert answer["is_weak"] and [cell["batch_size"] for cell in answer["cells"]] == [16, 32]
    assert "--batch 16" in err and "other training" in err


def test_a_batch_that_is_asked_for_is_what_the_loaders_hand_out(scale):
    _, out, _ = scale(TRAIN, "--json", "--batch", "24", script=["--grow"])
    answer = json.loads(out)
    assert [(cell["batch_size"], cell["status"]) for cell in answer["cells"]] == [(24, "measured")] * 2
    runs = {run.variant.name: run.facts.rank_examples for run in read_runs(Path("out/cells.jsonl"))}
    assert runs["full-1x24"] == (24.0,) and runs["full-2x24"] == (12.0, 12.0)
    assert runs["cached-1x12"] == (12.0,)


def test_a_world_that_fails_is_told_and_the_sweep_goes_on(scale):
    code, out, err = scale(TRAIN.replace("START", "assert size == 1, 'out of memory'"), "--json")
    one, two = json.loads(out)["cells"]
    assert code == 2 and one["status"] == "measured" and one["step_s"] > 0
    assert two["status"] == "failed" and "out of memory" in two["reason"] and two["reason"] in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\nprint('no training')", "took no step of an optimizer"),
        ("print('no torch')", "took no step of an optimizer"),
        (TRAIN.replace("100000", "1").replace("480", "64"), "ended after 4 steps on 1 rank"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_a_sentence(scale, text, said):
    code, out, err = scale(text)
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1] and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "1", "samestep.demo:digits"], "A batch of 1 was to be shared by 2 GPUs"),
        (["--batch", "8,x", "samestep.demo:digits"], "--batch is '8,x'"),
        (["--budget", "soon", "samestep.demo:digits"], "--budget is 'soon'"),
        (["--gpus", "1", "samestep.demo:digits"], "leaves nothing to compare"),
        (["nothere.py"], "There is no file nothere.py"),
        (["--set", "a=1", "--", "python", "x.py"], "--set a=1 was given for a script"),
    ],
)
def test_words_that_are_refused_before_anything_starts(scale, words, said):
    code, out, err = scale(None, *words)
    assert (code, out) == (2, "") and said in err
    assert not Path("runs").exists()


def test_a_folder_of_another_kind_or_version_is_refused(scale):
    Path("out").mkdir()
    Path("out/sweep.json").write_text('{"version": 7}')
    Path("out/job.json").write_text("{}")
    code, _, err = scale(TRAIN)
    assert code == 2 and "it is of version 7" in err
    Path("out/sweep.json").unlink()
    Path("out/job.json").unlink()
    Path("out/notes.txt").write_text("mine")
    code, _, err = scale(TRAIN)
    assert code == 2 and "is not empty and holds no such run" in err


def test_more_gpus_than_there_are_are_refused_with_an_offer():
    with pytest.raises(LaunchError, match=r"--gpus 1,2,8 .* has 4 GPUs to use: ask for --gpus 1,2, or hide"):
        check_worlds([1, 2, 8], 4)
    with pytest.raises(LaunchError, match=r"has 3 GPUs to use: ask for --gpus 1,3, or"):
        check_worlds([1, 8], 3)
    with pytest.raises(LaunchError, match=r"has 1 GPU to use: hide the GPUs"):
        check_worlds([1, 2], 1)
    check_worlds([1, 2, 8], 8)
    check_worlds([1, 2, 8], 0)


def test_times_with_units():
    assert [seconds_of(text) for text in ("90", "90s", "1.5m", "10 min", "2h")] == [90, 90, 90, 600, 7200]
    for text in ("", "-1s", "0s", "5 weeks", "nan"):
        with pytest.raises(ConfigError, match="give a time with a unit"):
            seconds_of(text)


def test_a_program_is_known_by_its_text_and_its_libraries(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    Path("own/train.py").write_text(
        "import torch, numpy as np\nfrom torchvision.models import resnet\nraise 1"
    )
    script = digest_of("", ("own/train.py", "--lr"))
    assert script is not None
    assert script == digest_of("", ("-m", "own.train")) == digest_of("own/train.py:task")
    assert libraries_of("", ("own/train.py",)) == ["numpy", "torchvision.models"]
    Path("own/train.py").write_text("import torch, numpy as np\n(")
    assert digest_of("", ("own/train.py",)) not in (None, script)
    assert libraries_of("", ("own/train.py",)) == []
    assert digest_of("no.such:task") is None
    assert digest_of("samestep.demo:digits") is not None
    assert "sklearn.datasets" in libraries_of("samestep.demo:digits")


def test_a_task_has_its_batch_set_and_its_norms_told_apart(tmp_path):
    words = ["--gpus", "1,2", "--rounds", "1", "--seconds", "0.05", "--batch", "30", "--out", "out", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "samestep.cli", "scale", *words, "samestep.demo:digits"],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    answer = json.loads(done.stdout)
    assert done.returncode in (0, 1), done.stderr
    assert [(cell["batch_size"], cell["status"]) for cell in answer["cells"]] == [(30, "measured")] * 2
    assert [cell["steps_per_epoch"] for cell in answer["cells"]] == [50, 50]
    (gap,) = answer["gaps"]
    assert gap["parts"][-1]["name"] == "synchronised norms"
    assert "start-up" in [part["name"] for part in gap["epoch"]["parts"]]
    assert not [remark for remark in answer["remarks"] if "not forked" in remark]
    runs = {run.variant.name: run.facts.rank_examples for run in read_runs(tmp_path / "out/cells.jsonl")}
    assert runs["full-2x30"] == (15.0, 15.0) and runs["cached-1x15"] == (15.0,)
    assert not list(tmp_path.glob("out/runs/*/checkpoints"))


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.replace("START", ""))
    words = ["--gpus", "1,2", "--seconds", "0.3", "--threads", "1", "--out", "out", "--budget", "1h"]
    process = subprocess.Popen(
        [sys.executable, "-m", "samestep.cli", "scale", *words, "--", "python", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    cells = tmp_path / "out" / "cells.jsonl"
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and len(read_runs(cells)) < 2:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "it was interrupted" in err and "the same command with --out out goes on" in err
    assert (
        json.loads((tmp_path / "out" / "scale.json").read_text())["stopped_because"] == "it was interrupted"
    )
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left
