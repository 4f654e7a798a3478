"""`samestep verify` from its words to its exit code; most ranks are forked, as in the zoo."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep import cli
from samestep.launch.watched import Watched

sys.path.append(str(Path(__file__).parent / "zoo"))
from runner import Fork

TRAIN = """
import os, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
size, rank = dist.get_world_size(), dist.get_rank()
data = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
torch.manual_seed(0)
sampler = DistributedSampler(TensorDataset(data))
loader = DataLoader(TensorDataset(data), 12 // (1 if "--grow" in sys.argv else size), sampler=sampler)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        CRASH
sys.stdout.buffer.write(b"caf\\xe9 0.5 [bold]\\n")
"""
OWN_LOOP = """
import samestep, torch
world = samestep.init(seed=0)
data = torch.utils.data.TensorDataset(torch.randn(17, 4, dtype=torch.float64))
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
model = world.replicate(model.double())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = world.loader(data, batch_size=8)
for epoch in range(3):
    for (batch,) in loader:
        with world.step(optimizer) as step:
            step.backward((model(batch) - batch.sum(1, keepdim=True)).square().sum(), len(batch))
"""
ALONE = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(3, 4) * step).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def verify(monkeypatch, capsys, tmp_path):
    """Verify a script with the words given: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(text, *words, script=()):
        if text is not None:
            Path("train.py").write_text(text)
            watched = functools.partial(Watched, start=Fork("train.py"))
            monkeypatch.setattr("samestep.cli.verify.Watched", watched)
            words = ["--out", "out", *words, "--", "python", "train.py", *script]
        monkeypatch.setattr(sys, "argv", ["samestep", "verify", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


def test_a_right_script_is_equal_and_the_answer_is_kept(verify):
    code, out, err = verify(TRAIN.replace("CRASH", ""), "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["verdict"] == "equal" and answer["worlds"] == [1, 2] and answer["findings"] == []
    assert answer == json.loads(Path("out/verdict.json").read_text())
    assert answer["command"] == ["verify", "--gpus", "1,2", "--steps", "24", "--", "python", "train.py"]
    assert err.startswith("no GPU found: CPU ranks (gloo)\nrun 1 of about 5: 1 rank, as it is\n")
    assert "2 ranks, as it is" in err and "equal: On 2 ranks the program trains the same" in err
    assert "caf" not in err


def test_a_wrong_script_is_different_with_its_cause_and_the_line_to_change(verify):
    code, out, err = verify(TRAIN.replace("CRASH", ""), "--gpus", "2", "--verbose", script=["--grow"])
    assert (code, out) == (1, "different\n"), err
    assert err.startswith("1 rank is added to --gpus 2")
    assert "1. batch-grows-with-world" in err and "fix: " in err and "train.py:11" in err
    assert "caf\ufffd 0.5 [bold]" in err
    assert (
        json.loads(Path("out/verdict.json").read_text())["findings"][0]["cause"] == "batch-grows-with-world"
    )


def test_a_rank_without_examples_keeps_the_others_company_and_counts_for_nothing(verify):
    """17 examples, 8 at once: the last step has one, so that one of two ranks has none."""
    code, out, err = verify(OWN_LOOP)
    assert (code, out) == (0, "equal\n"), err
    # the control: were what it is handed trained on, there would be others in that step
    code, out, err = verify(OWN_LOOP.replace("batch_size=8", "batch_size=8 * world.size"), "--out", "grown")
    assert code == 1 and "batch-grows-with-world" in err


def test_a_bias_that_the_norm_after_it_takes_away_is_no_difference(verify, monkeypatch):
    """Its gradient is rounding, of which Adam makes full steps; the running mean has them."""
    norm = (
        OWN_LOOP.replace("randn(17", "randn(24")
        .replace("Tanh()", "BatchNorm1d(3)")
        .replace("SGD(model.parameters(), 0.1)", "AdamW(model.parameters(), 0.01)")
    )
    code, out, _ = verify(norm)
    assert code == 0 and out.startswith("equal")
    # the control: it is this that is allowed for
    monkeypatch.setattr("samestep.verify.comparison._PASSED_ON", 0.0)
    code, _, err = verify(norm, "--out", "strict")
    assert code == 1 and "running_mean" in err


def test_a_crash_in_one_world_only(verify):
    crash = 'if size == 2 and rank == 1: raise KeyError("label")'
    code, out, err = verify(TRAIN.replace("CRASH", crash), "--json")
    assert code in (1, 2), err
    assert "Rank 1 failed: KeyError: 'label' (raised by the program itself, in step 2)" in err
    assert json.loads(out)["verdict"] in ("different", "inconclusive")
    assert "crashed-in-one-world" in [finding["cause"] for finding in json.loads(out)["findings"]]


def test_a_script_that_fails_everywhere_has_no_reference(verify):
    code, out, err = verify("raise OSError('no data')")
    assert (code, out) == (2, "inconclusive\n")
    assert "on one rank the program does not run" in err and "OSError: no data" in err


def test_a_script_that_ignores_the_world(verify):
    code, out, err = verify(ALONE, "--json")
    assert code == 1, err
    assert "world-ignored" in [finding["cause"] for finding in json.loads(out)["findings"]]


@pytest.mark.parametrize(
    "text, words",
    [
        ("import torch\ntorch.nn.Linear(2, 1)(torch.ones(3, 2))", "took no optimizer step"),
        (
            "import torch.multiprocessing as m\ndef f(i): pass\n"
            "if __name__ == '__main__': m.spawn(f, nprocs=2)",
            "processes of its own",
        ),
    ],
)
def test_programs_with_no_training_to_compare(verify, text, words):
    code, out, err = verify(text)
    assert (code, out) == (2, "inconclusive\n") and words in err


def test_a_program_without_torch(verify, monkeypatch):
    Path("train.py").write_text("print('no torch')")
    code, out, err = verify(None, "--", "python", "train.py")
    assert (code, out) == (2, "inconclusive\n") and "never loaded torch" in err


@pytest.mark.parametrize("gpus", ["", "two", "1,,2", "0,2", "1:2", "-1,2", "1.5"])
def test_world_sizes_that_are_none(verify, gpus):
    code, out, err = verify("", f"--gpus={gpus}")
    assert (code, out) == (2, "") and f"--gpus is {gpus!r}; name world sizes" in err


def test_one_rank_alone_is_nothing_to_compare(verify):
    code, _, err = verify("", "--gpus", "1,1")
    assert code == 2 and "leaves nothing to compare" in err


def test_more_ranks_than_gpus(verify, monkeypatch):
    monkeypatch.setattr("samestep.cli.verify.count_gpus", lambda: 2)
    code, _, err = verify("", "--gpus", "1,4")
    assert code == 2 and "4 ranks were asked for on this machine, which has 2 GPUs" in err


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--", "python", "nothing.py"], "nothing.py, which is not a file"),
        (["nothing.py"], "There is no file nothing.py"),
        (["--", "bash", "train.sh"], "only Python can be run on ranks"),
        (["--set", "lr=1", "--", "python", "train.py"], "a script has its own arguments"),
        (["--out", "full", "samestep.demo:digits"], "full, which is not empty and holds no such run"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(verify, words, sentence):
    Path("full").mkdir()
    Path("full/mine.txt").touch()
    code, out, err = verify(None, *words)
    assert (code, out) == (2, "") and sentence in " ".join(err.split()) and "Traceback" not in err


def test_a_task_that_cannot_be_loaded_is_told_as_samestep_train_would(verify):
    code, _, err = verify(None, "--gpus", "1,2", "samestep.demo:digit")
    assert code == 2 and "did you mean `digits`?" in err


def test_ctrl_c_ends_all(tmp_path):
    text = "import os, time\nopen(f'pid-{os.getpid()}', 'w').close()\ntime.sleep(600)"
    (tmp_path / "train.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "samestep.cli", "verify", "--", "python", "train.py"],
        cwd=tmp_path, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (found := list(tmp_path.glob("pid-*"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(found[0].name.removeprefix("pid-")), 0)
