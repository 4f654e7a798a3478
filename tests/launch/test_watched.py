"""Real ranks below the probe. Most scripts leave torch alone; the others are forked, as in the zoo."""

import socket
import sys
import time
from pathlib import Path

import pytest

from samestep.errors import LaunchError
from samestep.experiment import Experiment
from samestep.launch import watched as module
from samestep.launch.job import Job
from samestep.launch.starting import variables
from samestep.launch.watched import Watched
from samestep.observations import Observations
from samestep.observed import State
from samestep.record import rank_folder

sys.path.append(str(Path(__file__).parent.parent / "zoo"))
from runner import ForkRunner

STEPS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rank = dist.get_rank()
for step in range(1, 1 + int(sys.argv[1])):
    AT
    optimizer.zero_grad()
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
dist.barrier()
"""


@pytest.fixture(autouse=True)
def _cpu_ranks(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def run(folder, text, *arguments, ranks=2, **settings):
    script = folder / "script.py"
    script.write_text(text)
    said = []
    job = Job(command="script", script=(str(script), *arguments))
    watched = Watched(job=job, threads=1, **settings)
    ended = watched.run(folder / "run", ranks, on_tick=lambda ranks, lines: said.extend(lines))
    return ended, sorted(str(line) for line in said)


def forked(folder, text, *arguments, ranks=2, **settings):
    script = folder / "script.py"
    script.write_text(text)
    return ForkRunner(script, arguments, out=folder, **settings)("run", ranks)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_ranks_have_what_torchrun_gives_them(tmp_path):
    text = """
import os, sys
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
         "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS")
print(*(os.environ[name] for name in names), int(os.environ["MASTER_PORT"]) > 0,
      bool(os.environ["TORCHELASTIC_RUN_ID"]), sys.argv[1:], os.path.basename(sys.path[0]), os.getsid(0) != 0)
sys.stdout.buffer.write(b"caf\\xe9\\n")
"""
    ended, said = run(tmp_path, text, "--lr", "3")
    assert ended.status == "finished" and ended.exit_codes == {0: 0, 1: 0} and ended.failure is None
    assert said == [
        *(
            f"[rank {rank}] {rank} {rank} 0 {rank} default 2 2 1 2 127.0.0.1 0 0 False 1 "
            f"True True ['--lr', '3'] {tmp_path.name} True"
            for rank in (0, 1)
        ),
        "caf\ufffd",
    ]
    assert b"caf\xe9\n" in (rank_folder(tmp_path / "run", 1) / "stdout.log").read_bytes()
    assert Observations.read(tmp_path / "run").ranks == [0, 1]


def test_hash_seeds_differ_by_rank_and_run_unless_the_user_has_one():
    def seed(rank, run, **env):
        job = Job(command="script", script=("a.py",))
        return variables(rank, 2, run=run, port=1, env=env, threads=1, job=job)["PYTHONHASHSEED"]

    seeds = {seed(rank, run) for rank in range(4) for run in ("reference", "repeat")}
    assert len(seeds) == 8 and all(0 < int(each) < 2**32 for each in seeds)
    assert seed(1, "repeat") == seed(1, "repeat")
    assert seed(1, "repeat", PYTHONHASHSEED="7") == "7"


def test_only_tasks_are_kept_from_modules_of_the_working_folder():
    def safe(command, **env):
        job = Job(command=command, script=("a.py",), target="a.py")
        return variables(0, 1, run="r", port=1, env=env, threads=1, job=job).get("PYTHONSAFEPATH")

    assert safe("train") == "1" and safe("script") is None and safe("script", PYTHONSAFEPATH="2") == "2"


def test_a_run_with_enough_steps_is_cut(tmp_path):
    ended = forked(tmp_path, STEPS.replace("AT", "time.sleep(0.01)"), "100000", steps=3, enough_s=0.2)
    assert ended.status == "cut" and ended.failure is None
    found = Observations.read(tmp_path / "run")
    assert all(max(state.step for state in found.of(rank, State)) >= 3 for rank in (0, 1))


def test_a_run_is_not_cut_before_it_has_shown_enough(tmp_path):
    assert forked(tmp_path, STEPS.replace("AT", ""), "4", steps=5, enough_s=0.0).status == "finished"


def test_the_first_rank_to_fail_is_named_and_not_those_that_lost_it(tmp_path):
    text = STEPS.replace("AT", 'if step == 3 and rank == 1: raise ValueError("bad data")')
    ended = forked(tmp_path, text, "5")
    assert ended.status == "failed" and ended.failure.rank == 1
    assert ended.failure.sentence == (
        "Rank 1 failed: ValueError: bad data (raised by the program itself, in step 3)"
    )
    assert ended.failure.where == f"{tmp_path / 'script.py'}:9"
    assert "bad data" in (rank_folder(ended.folder, 1) / "traceback.txt").read_text()
    assert "Traceback" in (rank_folder(ended.folder, 0) / "stderr.log").read_text()


def test_ranks_that_take_other_numbers_of_steps(tmp_path):
    ended = forked(tmp_path, STEPS.replace("AT", "if step == 3 and rank == 1: sys.exit()"), "5")
    assert ended.status == "failed" and ended.failure.rank == 0
    assert "Rank 0 lost the other ranks" in ended.failure.sentence
    assert "rank 0 ended in step 3; rank 1 ended well after 2 steps" in ended.failure.sentence


def test_others_are_killed_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.3)
    text = """
import os, time
open(f"pid-{os.environ['RANK']}", "w").write(str(os.getpid()))
while not all(os.path.exists(f"pid-{rank}") for rank in (0, 1)): time.sleep(0.01)
if os.environ["RANK"] == "0": time.sleep(600)
import nothing_like_this
"""
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    ended, _ = run(tmp_path, text)
    assert ended.status == "failed" and ended.exit_codes == {1: 1} and time.monotonic() - began < 60
    assert ended.failure.sentence.startswith("Rank 1 failed: ModuleNotFoundError: No module named 'nothing")
    assert not any(alive(int((tmp_path / f"pid-{rank}").read_text())) for rank in (0, 1))


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("import os\nos.abort()", "Rank 0 was killed by signal 6 (SIGABRT)"),
        ("import os\nos._exit(4)", "Rank 0 ended with exit code 4 without a word"),
        ("import sys\nsys.exit(3)", "The run failed: it ended itself with exit code 3"),
        (
            "import argparse\nargparse.ArgumentParser(prog='train.py').parse_args()",
            "The run failed: it ended itself with exit code 2, saying: "
            "train.py: error: unrecognized arguments: --nonsense",
        ),
        (
            "from samestep.errors import DataError\nraise DataError('No examples: add some.')",
            "No examples: add some.",
        ),
    ],
)
def test_ends_that_are_no_good_ones(tmp_path, text, sentence):
    ended, _ = run(tmp_path, text, "--nonsense", ranks=1)
    assert ended.status == "failed" and ended.failure.sentence == sentence


@pytest.mark.parametrize("text", ["import atexit, os\natexit.register(os.abort)", "import os\nos._exit(0)"])
def test_what_becomes_of_a_process_after_its_program_is_no_failure(tmp_path, text):
    ended, _ = run(tmp_path, text, ranks=1)
    assert ended.status == "finished" and ended.failure is None


def test_the_exit_code_is_the_programs_whatever_becomes_of_its_process(tmp_path):
    ended, _ = run(tmp_path, "import atexit, os, sys\natexit.register(os.abort)\nsys.exit(7)", ranks=1)
    assert ended.status == "failed" and ended.exit_codes == {0: 7}


def test_a_process_that_hangs_on_its_way_out_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LINGER_S", 0.2)
    ended, _ = run(tmp_path, "import atexit, time\natexit.register(time.sleep, 600)", ranks=1)
    assert ended.status == "finished" and ended.seconds < 60


def test_ranks_that_wait_for_ever(tmp_path):
    text = "import os, time\nprint(1)\nif os.environ['RANK'] == '1': time.sleep(600)"
    ended, _ = run(tmp_path, text, stall_s=2.0)
    assert ended.status == "stalled" and ended.failure.rank == 1
    assert ended.failure.sentence == (
        "The ranks left stood still for 2 s: rank 0 ended well after 0 steps; rank 1 in step 1, waiting"
    )


def test_ranks_that_work_do_not_stall(tmp_path):
    text = "import time\nuntil = time.time() + 5\nwhile time.time() < until: pass"
    ended, _ = run(tmp_path, text, ranks=1, stall_s=2.0)
    assert ended.status == "finished"


def test_a_port_that_somebody_took_meanwhile(tmp_path, monkeypatch):
    text = """
import os, socket
listener = socket.socket()
try:
    listener.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
except OSError as error:
    raise RuntimeError(f"EADDRINUSE: {error}")
"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1], module.free_port()]
        monkeypatch.setattr(module, "free_port", lambda: ports.pop(0))
        ended, _ = run(tmp_path, text, ranks=1)
    assert ended.status == "finished" and ports == []


def test_an_experiment_reaches_the_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import random\nprint(random.random())")
    watched = Watched(job=Job(command="script", script=(str(script),)), threads=1)
    said = []
    for name in ("a", "b"):
        watched.run(tmp_path / name, 1, Experiment(seed=3), on_tick=lambda ranks, lines: said.extend(lines))
    watched.run(tmp_path / "c", 1, on_tick=lambda ranks, lines: said.extend(lines))
    assert said[0] == said[1] != said[2]
    assert (tmp_path / "a/experiment.json").exists() and not (tmp_path / "c/experiment.json").exists()


def test_an_interrupt_leaves_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.py"
    script.write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)")

    def interrupt(ranks, said):
        if Path("pid").exists() and Path("pid").read_text():
            raise KeyboardInterrupt

    watched = Watched(job=Job(command="script", script=(str(script),)), threads=1)
    with pytest.raises(KeyboardInterrupt):
        watched.run(tmp_path / "run", 1, on_tick=interrupt)
    assert not alive(int(Path("pid").read_text()))


def test_more_ranks_than_gpus_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "count_gpus", lambda: 1)
    with pytest.raises(LaunchError, match="2 ranks were asked for on this machine, which has 1 GPU"):
        run(tmp_path, "")
    assert not (tmp_path / "run").exists()
