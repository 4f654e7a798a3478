"""`samestep watch` and `samestep train --watch`, on real ranks."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import signal
import sys
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

fault = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
examples = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = None if fault == "unshared" else DistributedSampler(examples)
loader = DataLoader(examples, batch_size=8, sampler=sampler)
if fault == "long":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(5))
step = 0
for epoch in range(10**9 if fault == "long" else 3):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for inputs, targets in loader:
        step += 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        if fault == "drift" and rank == 1 and step == 7:
            model.module[2].bias.grad.mul_(2)
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)
    if fault == "long":
        time.sleep(0.05)
if fault == "exit":
    sys.exit(7)
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def samestep(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "samestep", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=150,
    )


def watch(script, fault, out):
    words = ("watch", "--gpus", 2, "--every", 3, "--out", out, "--", "python", script, fault)
    return samestep(*words)


def test_a_program_that_is_right(script, tmp_path):
    done = watch(script, "none", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [line.split(" loss ")[0] for line in done.stdout.splitlines()] == [
        f"[rank 0] epoch {epoch}" for epoch in range(3)
    ]
    assert "finding" not in done.stderr
    assert not (tmp_path / "out" / "findings.jsonl").exists()


def test_a_rank_that_drifts_is_found_and_followed_again(script, tmp_path):
    out = tmp_path / "out"
    done = watch(script, "drift", out)
    assert done.returncode == 1, done.stderr
    assert "finding replicas-drift: After step 9 the replica of rank" in done.stderr
    [found] = [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]
    assert found["cause"] == "replicas-drift"
    assert found["evidence"]["equal_until_step"] == 6 and "2.bias" in found["evidence"]["tensors"]
    again = samestep("watch", "--json", "--every", 3, out)
    answer = json.loads(again.stdout)
    assert again.returncode == 1
    assert [finding["message"] for finding in answer["findings"]] == [found["message"]]
    assert answer["steps"] == 12 and answer["exit_code"] == 0


def test_examples_that_were_not_shared_out_in_json(script, tmp_path):
    words = (
        "--gpus",
        2,
        "--every",
        3,
        "--out",
        tmp_path / "out",
        "--json",
        "--",
        "python",
        script,
        "unshared",
    )
    done = samestep("watch", *words)
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert [finding["cause"] for finding in answer["findings"]] == ["same-examples-on-every-rank"]
    assert f"{script.name}:" in answer["findings"][0]["evidence"]["loader"]


def test_the_exit_code_is_the_programs_own(script, tmp_path):
    done = watch(script, "exit", tmp_path / "out")
    assert done.returncode == 7
    assert "exit code 7" in done.stderr


def test_a_signal_is_passed_on_to_the_program(script, tmp_path):
    words = [
        "watch",
        "--gpus",
        "2",
        "--every",
        "3",
        "--out",
        str(tmp_path / "out"),
        "--",
        "python",
        str(script),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "samestep", *words, "long"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert "epoch 0" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        process.communicate(timeout=60)
        assert process.returncode == 5
        assert time.monotonic() - began < 30
    finally:
        process.kill()
        process.wait()


def test_what_cannot_be_watched_is_refused(script, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = samestep("watch", empty)
    assert done.returncode == 2
    assert "no rank has written there" in done.stderr
    done = samestep("watch", "--", "python", tmp_path / "absent.py")
    assert done.returncode == 2
    assert "absent.py" in done.stderr
    done = samestep("watch", script)
    assert done.returncode == 2
    assert "-- python" in done.stderr and "samestep train TARGET --watch" in done.stderr


def test_a_training_of_a_task_is_watched_and_stays_the_same(tmp_path):
    words = ("train", "samestep.demo:digits", "--gpus", 2, "--set", "epochs=1", "--json")
    plain = samestep(*words, "--out", tmp_path / "plain")
    watched = samestep(*words, "--watch", "--every", 5, "--out", tmp_path / "watched")
    assert plain.returncode == watched.returncode == 0, watched.stderr
    assert json.loads(plain.stdout)["digest"] == json.loads(watched.stdout)["digest"]
    assert json.loads(watched.stdout)["findings"] == []
    assert (tmp_path / "watched/ranks/00001/observations.jsonl").stat().st_size > 1000
    assert not (tmp_path / "plain/ranks/00001/observations.jsonl").exists()
