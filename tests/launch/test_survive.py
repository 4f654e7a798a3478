"""Runs that lose ranks, are stopped by schedulers, or killed from above: real agents, ranks and signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep.launch.job import Job
from samestep.launch.limits import Limits
from samestep.launch.local import launch
from samestep.record import Record, is_kept, rank_folder, read_json

# Ranks that know nothing of one another: those that are left must be told, as with a collective that hangs.
FAULTY = """
import os, signal, time
rank, restarts = int(os.environ["RANK"]), int(os.environ["SAMESTEP_RESTARTS"])
print(f"round {restarts} of {os.environ['WORLD_SIZE']}, local rank {os.environ['LOCAL_RANK']}")
open(f"here-{restarts}-{rank}", "w").close()
FAULT
while not restarts:
    time.sleep(0.05)
"""

# Small, and without the libraries that take longer to load than to train with.
TASK = """
import os
from pathlib import Path

import torch
from torch import nn
from samestep import Task, supervised
from samestep.hooks import Hook


class Kill(Hook):
    def after_step(self, training):
        if training.step == 30 and training.world.rank == VICTIM and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), 9)


def examples():
    x = torch.arange(150.0).reshape(50, 3).sin()
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


task = Task(
    model=lambda: nn.Linear(3, 1),
    train_data=examples,
    loss=supervised(nn.MSELoss()),
    optimizer=optimizer,
    batch_size=8,
    steps=60,
    hooks=(Kill(),),
    checkpoint_every=10,
)
"""

POLITE = """
import os, time
from samestep.train import stop
open(f"here-0-{os.environ['RANK']}", "w").close()
while not stop.requested():
    time.sleep(0.02)
print("saved")
"""

OWN_LOOP = """
import os, sys
from pathlib import Path

import samestep
import torch
from torch import nn

world = samestep.init()
x = torch.arange(150.0).reshape(50, 3).sin()
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = world.replicate(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = world.loader(data, batch_size=8)
checkpoints = world.checkpoints("saved", model=model, optimizer=optimizer, loader=loader)
begun_at = checkpoints.restore()
for epoch in range(loader.epoch, 10**9):
    for inputs, targets in loader:
        with world.step(optimizer) as step:
            step.backward((model(inputs) - targets).square().sum(), len(inputs))
        if world.num_steps > begun_at + 20:
            Path(f"here-0-{os.environ['RANK']}").touch()
        if step.is_last_turn and world.stop_reason:
            break
    if world.stop_reason:
        break
checkpoints.save()
checkpoints.wait()
print(f"from {begun_at} to {world.num_steps}, in epoch {loader.epoch}")
"""

STUBBORN = POLITE.replace("not stop.requested()", "True")


@pytest.fixture(autouse=True)
def _cpu_ranks(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("_CONDOR_JOB_AD", "_CONDOR_SCRATCH_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def run(text, gpus, restarts=None):
    Path("script.py").write_text(text)
    said = []
    least, _, most = gpus.rpartition(":")
    limits = Limits(least=int(least or most), most=int(most), restarts=restarts)
    job = Job(command="script", script=("script.py",))
    outcome = launch(job, gpus=limits, out=Path("run"), on_tick=said.extend)
    return outcome, [str(line) for line in said]


def faulty(fault, gpus, restarts=None):
    return run(FAULTY.replace("FAULT", fault), gpus, restarts)


def processes(pid):
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += processes(int(child))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def start(*words, gpus="2", script=""):
    """The command line as a process; with a script, once its ranks are inside it."""
    if script:
        Path("script.py").write_text(script)
        words = (*words, "--", "python", "script.py")
    command = [sys.executable, "-m", "samestep.cli", "train", "--gpus", gpus, "--out", "run", "--json"]
    process = subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    if script:
        wait_until(lambda: all(Path(f"here-0-{r}").exists() for r in range(int(gpus.rpartition(":")[2]))))
    return process


def rank_pid(rank):
    return int((rank_folder(Path("run"), rank) / "pid").read_text())


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_training_goes_on_without_a_killed_rank_to_the_same_end():
    digests = set()
    for victim, least, most in [(0, 1, 2), (2, 2, 3)]:
        Path("killed").unlink(missing_ok=True)
        Path("task.py").write_text(TASK.replace("VICTIM", str(victim)))
        said = []
        folder = Path(f"run-{victim}")
        job = Job(command="train", target="task.py:task", mode="bitwise", shards=4)
        outcome = launch(job, gpus=Limits(least=least, most=most), out=folder, on_tick=said.extend)
        assert outcome.status == "finished" and outcome.failure is None
        result = outcome.result
        assert (result["world_size"], result["restarts"], result["steps"]) == (least, 1, 60)
        assert result["examples"] == 60 * 8 - 8 * 6  # eight epochs end in a batch of 2
        record = Record.read(folder)
        assert [row["step"] for row in record.steps()] == list(range(1, 61))
        events = {row["event"]: row for row in record.events()}
        lost = events["rank-lost"]
        assert (lost["rank"], lost["reason"]) == (victim, "was killed by signal 9")
        assert events["restarted"]["world_size"] == least
        place = events["restored"]["step"]
        assert 10 <= place <= 30
        [news] = [str(line) for line in said if "going on" in str(line)]
        ranks = f"{least} rank{'s' * (least > 1)}"
        assert news == f"rank {victim} was killed by signal 9; going on with {ranks} from step {place}"
        digests.add(result["digest"])
    assert len(digests) == 1


def test_ranks_that_notice_nothing_are_told():
    outcome, said = faulty("if rank == 1 and not restarts: os.kill(os.getpid(), 11)", "2:3")
    assert outcome.status == "finished" and outcome.result["restarts"] == 1
    assert "rank 1 was killed by signal 11 (SIGSEGV); going on with 2 ranks from the beginning" in said
    # all that are left speak as one again, and what the lost rank left behind is gone
    assert "[rank 1] round 1 of 2, local rank 1" in said
    assert not (rank_folder(outcome.out, 2) / "pid").exists()


def test_too_few_are_left():
    outcome, _ = faulty("if rank: os.kill(os.getpid(), 9)", "2:3")
    assert outcome.status == "failed"
    assert outcome.failure.sentence in [
        f"Rank {rank} was killed by signal 9 (out of memory?); 1 of 3 ranks are left, and --gpus 2:3 "
        "asks for 2: go on from the last checkpoint with --resume."
        for rank in (1, 2)
    ]
    assert read_json(outcome.out / "result.json")["reason"] == outcome.failure.sentence


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("if rank == 1: raise ValueError('bad data')", "Rank 1 failed: ValueError: bad data"),
        ("if rank == 1: os._exit(3)", "Rank 1 ended with exit code 3 without a word"),
    ],
)
def test_what_would_happen_again_is_not_tried_again(fault, sentence):
    outcome, _ = faulty(fault, "1:3")
    assert outcome.status == "failed" and outcome.failure.sentence == sentence
    assert not list(Path().glob("here-1-*")) and outcome.result["restarts"] == 0


def test_a_rank_that_cannot_be_missed_is_started_again_as_often_as_is_allowed():
    outcome, said = faulty("if rank == 1 and not restarts: os.kill(os.getpid(), 9)", "2", restarts=1)
    assert outcome.status == "finished" and outcome.result["world_size"] == 2
    assert "rank 1 was killed by signal 9; going on with 2 ranks from the beginning" in said


def test_a_rank_that_dies_again_and_again():
    outcome, _ = faulty("if rank == 1: os.kill(os.getpid(), 9)", "2", restarts=1)
    assert "--restarts 1 lets ranks be started again no more often" in outcome.failure.sentence
    assert Path("here-1-1").exists() and not Path("here-2-1").exists()


def test_a_killed_agent_is_a_lost_rank():
    process = start(gpus="2:3", script=FAULTY.replace("FAULT", ""))
    os.kill(parent_of(rank_pid(2)), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    answer = json.loads(out)
    assert process.returncode == 0 and (answer["world_size"], answer["restarts"]) == (2, 1)
    assert b"rank 2 was killed by signal 9; going on with 2 ranks" in err


@pytest.mark.parametrize("victim", ["command line", "host"])
def test_nothing_is_left_when_those_above_are_killed(victim):
    process = start(gpus="1:2", script=STUBBORN)
    pids = processes(process.pid)
    assert len(pids) == 1 + 1 + 2 + 2  # the command line, the host, and a member and a rank twice
    os.kill(process.pid if victim == "command line" else parent_of(parent_of(rank_pid(0))), signal.SIGKILL)
    process.communicate(timeout=20)
    wait_until(lambda: not any(map(alive, pids)), 3)
    # neither a lock nor a port stands in the way of the next
    assert process.returncode == (-9 if victim == "command line" else 2)


@pytest.mark.parametrize(
    ("number", "variables", "code"),
    [
        (signal.SIGTERM, {}, 75),
        (signal.SIGUSR1, {"_CONDOR_SCRATCH_DIR": "/x"}, 85),
    ],
)
def test_schedulers_are_told_to_start_it_again(monkeypatch, number, variables, code):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    process = start(script=POLITE)
    pids = processes(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code and b"saved" in err
    assert json.loads(out)["status"] == "stopped"
    assert not any(map(alive, pids))


def test_a_training_that_was_told_to_stop_goes_on_where_it_was():
    Path("task.py").write_text(TASK.replace("VICTIM", "None"))
    words = ["task.py", "--set", "steps=1000000", "--set", "checkpoint_every=1000000"]
    process = start(*words)
    wait_until(lambda: Path("run/steps.jsonl").exists())
    # as srun does: to every process, agents and ranks included
    for pid in processes(process.pid):
        os.kill(pid, signal.SIGUSR1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err.decode()
    stopped = json.loads(out)
    assert stopped["status"] == "stopped" and stopped["steps"] > 0

    size = Path("run/steps.jsonl").stat().st_size
    process = start(*words, "--resume")
    wait_until(lambda: Path("run/steps.jsonl").stat().st_size > size)
    os.kill(rank_pid(1), signal.SIGTERM)  # one that hears it is enough
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err.decode()
    again = json.loads(out)
    assert again["status"] == "stopped" and again["steps"] > stopped["steps"]
    events = {row["event"]: row for row in Record.read("run").events()}
    assert events["restored"]["step"] == stopped["steps"]
    kept = [row["step"] for row in Record.read("run").steps()]
    assert kept == [step for step in range(1, again["steps"] + 1) if is_kept(step)]


def test_a_loop_of_ones_own_says_how_many_steps_it_made_and_goes_on():
    """A job that made steps is given back to its queue at its time limit, so they must be known."""
    made = 0
    for gpus, more in (("2", ()), ("1", ("--resume",))):
        for rank in range(2):
            Path(f"here-0-{rank}").unlink(missing_ok=True)
        process = start(*more, gpus=gpus, script=OWN_LOOP)
        if gpus == "2":  # one that hears it is enough, also if it is not the one that reports
            os.kill(rank_pid(1), signal.SIGUSR1)
        else:
            process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
        answer = json.loads(out)
        assert process.returncode == 75 and answer["status"] == "stopped", err.decode()
        assert answer["steps"] > made + 20
        epoch = (answer["steps"] - 1) // 7  # 50 examples are 7 steps; the last may be over or not
        assert f"from {made} to {answer['steps']}, in epoch " in err.decode()
        assert int(err.decode().rpartition("in epoch ")[2].split()[0]) in (epoch, epoch + 1)
        made = answer["steps"]
