"""Real agents, real ranks, real signals. Most scripts leave torch alone, so that ranks start at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep.launch import voices
from samestep.launch.job import Job
from samestep.launch.local import launch
from samestep.record import Record, rank_folder, read_json

SPEAK = """
import os, sys
rank = int(os.environ["RANK"])
print("start", sys.argv[1:], os.path.basename(sys.path[0]), __name__)
print(f"I am {rank}")
sys.stdout.buffer.write(b"caf\\xe9 [bold]\\n")
sys.stdout.flush()
print("10%\\r50%\\r100%", file=sys.stderr)
print("end", end="")
"""

LOST_PEER = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 1:
    FAULT
dist.all_reduce(total)
dist.all_reduce(total)
"""

STUBBORN = """
import os, signal, time
open(f"here-{os.environ['RANK']}", "w").close()
while True:
    time.sleep(0.1)
"""

POLITE = """
import os, time
from samestep.train import stop
open(f"here-{os.environ['RANK']}", "w").close()
while not stop.requested():
    time.sleep(0.02)
print("saved")
"""


@pytest.fixture(autouse=True)
def _cpu_ranks(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def run(folder, text, *arguments, gpus=2):
    script = folder / "script.py"
    script.write_text(text)
    said = []
    job = Job(command="script", script=(str(script), *arguments))
    outcome = launch(job, gpus=gpus, out=folder / "run", on_tick=said.extend)
    return outcome, [str(line) for line in said]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid):
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def start(folder, text, gpus=2):
    """The command line as a process, its ranks inside their script: (process, all pids below it)."""
    (folder / "script.py").write_text(text)
    command = [sys.executable, "-m", "samestep.cli", "train", "--gpus", str(gpus), "--out", "run", "--json"]
    process = subprocess.Popen(
        [*command, "--", "python", "script.py"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: all((folder / f"here-{r}").exists() for r in range(gpus)), 60)
    agents = children(process.pid)
    ranks = [int((rank_folder(folder / "run", r) / "pid").read_text()) for r in range(gpus)]
    assert len(agents) == 1 and all(map(alive, agents + ranks))
    return process, agents + ranks


def test_ranks_are_heard_as_one_voice_where_they_agree(tmp_path, monkeypatch):
    # a busy machine may let one rank lag behind for longer than people would like to wait
    monkeypatch.setitem(voices.Choir.__init__.__kwdefaults__, "hold_s", 30.0)
    outcome, said = run(tmp_path, SPEAK, "--lr", "3")
    assert outcome.status == "finished" and outcome.failure is None
    assert outcome.result["world_size"] == 2
    assert sorted(said) == sorted([
        f"start ['--lr', '3'] {tmp_path.name} __main__",
        "[rank 0] I am 0",
        "[rank 1] I am 1",
        "caf\ufffd [bold]",
        "100%",
        "end",
    ])  # fmt: skip
    assert b"caf\xe9" in (rank_folder(tmp_path / "run", 1) / "stdout.log").read_bytes()


JOINED = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()  # else a quick rank may leave while the other is still connecting to it
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("text", "gpus", "causes"),
    [
        ("print(1)", 2, ["world-not-joined"]),
        ("print(1)", 1, []),
        ("import samestep; world = samestep.init(); world.close()", 2, []),
        (JOINED, 2, []),
    ],
    ids=["alone", "one rank", "init", "a group of its own"],
)
def test_a_script_that_never_joins_its_ranks_is_told(tmp_path, text, gpus, causes):
    outcome, _ = run(tmp_path, text, gpus=gpus)
    assert outcome.status == "finished"
    assert [finding["cause"] for finding in outcome.result.get("findings", [])] == causes
    assert [finding["cause"] for finding in Record.read(outcome.out).findings()] == causes


def test_an_exception_is_told_once_with_the_users_line(tmp_path):
    outcome, said = run(tmp_path, LOST_PEER.replace("FAULT", 'raise ValueError("bad data")'))
    assert outcome.status == "failed"
    assert outcome.failure.sentence == "Rank 1 failed: ValueError: bad data"
    assert outcome.failure.where == f"{tmp_path / 'script.py'}:7"
    assert "Traceback" in (rank_folder(outcome.out, 1) / "traceback.txt").read_text()
    assert said == []  # neither torch's agent nor the rank left alone has a word
    assert read_json(outcome.out / "result.json")["status"] == "failed"
    # the rank left alone did fail too, and naming it would be wrong
    assert "error.json" in {path.name for path in rank_folder(outcome.out, 0).iterdir()}


def test_a_killed_rank_is_named_with_its_signal(tmp_path):
    outcome, said = run(tmp_path, LOST_PEER.replace("FAULT", "os.kill(os.getpid(), 9)"))
    assert outcome.failure.sentence == "Rank 1 was killed by signal 9 (out of memory?)"
    assert said == []


def test_an_abort_after_the_work_is_no_failure_and_before_it_is(tmp_path):
    (tmp_path / "after").mkdir()
    (tmp_path / "before").mkdir()
    outcome, _ = run(tmp_path / "after", "import atexit, os\natexit.register(os.abort)", gpus=1)
    assert outcome.status == "finished"
    outcome, _ = run(tmp_path / "before", "import os\nos.abort()", gpus=1)
    assert outcome.failure.sentence == "Rank 0 was killed by signal 6 (SIGABRT)"


def test_a_script_that_ends_itself(tmp_path):
    outcome, _ = run(tmp_path, "import sys\nsys.exit(3)", gpus=1)
    assert outcome.failure.sentence == "The run failed: it ended itself with exit code 3"


def test_ctrl_c_lets_ranks_finish_and_leaves_nobody(tmp_path):
    process, pids = start(tmp_path, POLITE)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and time.monotonic() - began < 5
    assert not any(map(alive, pids))
    answer = json.loads(out)
    assert answer["status"] == "stopped" and read_json(tmp_path / "run/result.json")["status"] == "stopped"
    assert b"saved" in err and b"Traceback" not in err


def test_ctrl_c_kills_ranks_that_do_not_listen(tmp_path):
    process, pids = start(tmp_path, STUBBORN)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and time.monotonic() - began < 5
    assert not any(map(alive, pids))
    assert read_json(tmp_path / "run/result.json")["status"] == "stopped"
    assert b"Traceback" not in err


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    process, pids = start(tmp_path, STUBBORN)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130 and time.monotonic() - began < 2
    assert not any(map(alive, pids))


def test_ranks_do_not_outlive_a_killed_command_line(tmp_path):
    process, pids = start(tmp_path, STUBBORN)
    process.kill()
    process.communicate(timeout=20)
    wait_until(lambda: not any(map(alive, pids)), 3)


@pytest.mark.parametrize(
    "name", ["GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]
)
def test_ranks_get_what_one_machine_needs(name):
    from samestep.launch.agent import environment_of

    assert environment_of({}, threads=2)[name] == {"G": "lo", "O": "2", "T": "1"}[name[0]]
    assert environment_of({"GLOO_SOCKET_IFNAME": "eth0"}, threads=2)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "PATH" in environment_of(os.environ, threads=1)


def test_scripts_learn_the_mode_from_their_environment():
    from samestep.launch.agent import environment_of

    outer = {"SAMESTEP_SHARDS": "99", "SAMESTEP_ALLOW_DRIFT": "1"}
    names = ("SAMESTEP_MODE", "SAMESTEP_SHARDS", "SAMESTEP_ALLOW_DRIFT", "CUBLAS_WORKSPACE_CONFIG")
    job = Job(command="script", mode="bitwise", shards=4, allow_drift=True)
    env = environment_of({}, threads=1, job=job)
    assert [env.get(name) for name in names] == ["bitwise", "4", "1", ":4096:8"]
    env = environment_of(outer, threads=1, job=Job(command="script"))
    assert [env.get(name) for name in names] == ["fast", None, None, None]
