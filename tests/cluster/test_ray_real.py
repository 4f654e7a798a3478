"""A real Ray: two workers, a queue, killed workers, a cancelled job, studies; from `submit` to the record.

One cluster of two CPUs for the file, with folder, port and token of its own; it ends with the tests, by its
process, whatever else of Ray runs on the machine.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from cluster_scripts import DIFFERENT, SLOWER
from test_submit_command import DIGITS, samestep, until

from samestep.launch.machine import free_port
from samestep.launch.roll import Roll

pytest.importorskip("ray", reason="Ray is not installed: pip install 'samestep[ray]'")
pytestmark = pytest.mark.timeout(900)
STARTED = "Ray runtime started"
OVER = ("finished", "failed", "stopped", "cancelled")


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster; its token is in the environment meanwhile."""
    temp = Path(tempfile.mkdtemp(prefix="ss", dir="/tmp"))  # its sockets want a short path
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_raylet_start_wait_time_s", "120")
        try:
            # on a busy machine Ray loses patience with itself after 30 s
            for _ in range(3):
                head, port = start_head(temp)
                while head.poll() is None and not (is_listening(port) and STARTED in said_in(temp)):
                    time.sleep(0.3)
                if head.poll() is None:
                    break
            assert head.poll() is None, said_in(temp)
            yield f"127.0.0.1:{port}"
        finally:
            head.terminate()
            head.wait(120)
            assert gone(str(temp)), "processes of Ray are left"
            shutil.rmtree(temp, ignore_errors=True)


def start_head(temp):
    port = free_port()
    words = ["start", "--head", "--block", "--include-dashboard=false", "--temp-dir", str(temp)]
    with (temp / "head.log").open("wb") as log:
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words, f"--port={port}", "--num-cpus=2"],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    return head, port


def said_in(temp):
    return (temp / "head.log").read_text()


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def commands():
    """The command lines of all processes, by their numbers."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            yield int(path.name), (path / "cmdline").read_text()
        except OSError:
            continue


def gone(text, seconds=60):
    """Whether no process is left, soon, that has a text in its command line."""
    deadline = time.monotonic() + seconds
    while any(text in command for pid, command in commands() if pid != os.getpid()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def worker_above(pid):
    """The worker of Ray that a rank is below."""
    while not Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1
    return pid


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pid_of(run, rank):
    """The process of a rank, or None before it was started."""
    return next((begun.pid for begun in Roll(run).started if begun.rank == rank), None)


def new_pid_of(run, rank, known):
    """The process of a rank that is none of those that are known, or None before it was started."""
    pids = [begun.pid for begun in Roll(run).started if begun.rank == rank and begun.pid not in known]
    return pids[-1] if pids else None


def told(folder):
    """All that runners and commands said, for a test that failed."""
    return "\n".join(
        p.read_text()[-3000:] for p in [*folder.glob("jobs/*/*.log"), *folder.glob("jobs/*/*.out")]
    )


def wait_for(is_so, folder, seconds=600):
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < deadline, told(folder)
        time.sleep(0.1)
    return found


def test_a_killed_worker_is_started_again_and_the_bits_are_those_of_one_rank(cluster, tmp_path):
    folder = tmp_path / "jobs"
    samestep("submit", DIGITS, "--on", "ray", "--address", cluster, "--gpus", "1,2", "--cpu",
             "--mode", "bitwise", "--set", "epochs=4", "--out", folder, cwd=tmp_path)  # fmt: skip
    run = folder / "2-ranks"
    wait_for(lambda: any(row["event"] == "checkpoint" for row in rows(run / "events.jsonl")), folder)
    os.kill(worker_above(pid_of(run, 1)), signal.SIGKILL)
    jobs = until(folder, lambda jobs: all(job["state"] in OVER for job in jobs.values()), 600)
    assert {job["state"] for job in jobs.values()} == {"finished"}, told(folder)
    assert (jobs["1-rank"]["attempts"], jobs["2-ranks"]["attempts"]) == (1, 2)
    results = [json.loads((folder / name / "result.json").read_text()) for name in jobs]
    assert len({result["digest"] for result in results}) == 1
    assert results[1]["world_size"] == 2 and "under Ray" in (folder / "jobs/2-ranks/ray-0.out").read_text()
    events = rows(run / "events.jsonl")
    assert "resumed" in [row["event"] for row in events]
    waits = [row["wait_s"] for row in events if row["event"] == "job"]
    assert len(waits) == 2 and sum(waits) == pytest.approx(jobs["2-ranks"]["wait_s"])
    # two CPUs: three ranks cannot run at once, so somebody waited
    assert max(job["wait_s"] for job in jobs.values()) > 1.0
    assert gone(str(run)), "a rank outlived its worker"


def test_a_cancelled_job_saves_first(cluster, tmp_path):
    folder = tmp_path / "jobs"
    samestep("submit", DIGITS, "--on", "ray", "--address", cluster, "--cpu", "--set", "epochs=100000",
             "--out", folder, cwd=tmp_path)  # fmt: skip
    wait_for(lambda: (folder / "1-rank" / "progress.json").exists(), folder)
    samestep("jobs", folder, "--cancel", cwd=tmp_path)
    job = until(folder, lambda jobs: jobs["1-rank"]["state"] in OVER)["1-rank"]
    assert (job["state"], job["exit_code"]) == ("stopped", 75), told(folder)
    assert rows(folder / "1-rank" / "events.jsonl")[-1]["event"] == "job"
    assert any(row["event"] == "checkpoint" for row in rows(folder / "1-rank" / "events.jsonl"))


@pytest.mark.parametrize(
    ("command", "script", "answer"),
    [
        ("verify", DIFFERENT, "different; see verify/verdict.json"),
        ("scale", SLOWER, "not faster; see scale/scale.json"),
    ],
)
def test_a_study_is_a_job_of_one_worker_which_is_finished_also_if_it_says_no(
    cluster, tmp_path, command, script, answer
):
    (tmp_path / "script.py").write_text(script)
    folder = tmp_path / "jobs"
    samestep("submit", "--on", "ray", "--address", cluster, "--cpu", "--gpus", "1,2", "--run", command,
             "--out", folder, "--", "python", "script.py", cwd=tmp_path)  # fmt: skip
    job = until(folder, lambda jobs: jobs[command]["state"] in OVER, 600)[command]
    assert (job["state"], job["exit_code"]) == ("finished", 1), told(folder)
    assert job["reason"] == f"answer: {answer}"
    said = (folder / "jobs" / command / "ray-0.out").read_text()
    assert "under Ray" not in said, "the ranks are its own"


def test_a_worker_that_is_lost_too_often_is_told_with_the_setting(cluster, tmp_path):
    folder = tmp_path / "jobs"
    samestep("submit", DIGITS, "--on", "ray", "--address", cluster, "--cpu", "--set", "epochs=100000",
             "--option", "max_failures=1", "--out", folder, cwd=tmp_path)  # fmt: skip
    killed = []
    for _ in range(2):
        pid = wait_for(lambda: new_pid_of(folder / "1-rank", 0, killed), folder)
        os.kill(worker_above(pid), signal.SIGKILL)
        killed.append(pid)
    job = until(folder, lambda jobs: jobs["1-rank"]["state"] in OVER, 600)["1-rank"]
    assert (job["state"], job["attempts"]) == ("failed", 2), (job, told(folder))
    assert "no more often (max_failures), and rank 0 is lost" in job["reason"]


def test_what_the_cluster_will_never_have_is_said_while_it_waits(cluster, tmp_path):
    folder = tmp_path / "jobs"
    samestep("submit", DIGITS, "--on", "ray", "--address", cluster, "--cpu", "--option", "resource:disk=1",
             "--out", folder, cwd=tmp_path)  # fmt: skip
    job = until(folder, lambda jobs: jobs["1-rank"]["reason"] or jobs["1-rank"]["state"] in OVER)["1-rank"]
    assert job["state"] == "pending" and "1 disk (it has 0)" in job["reason"], told(folder)
    samestep("jobs", folder, "--cancel", cwd=tmp_path)
    job = until(folder, lambda jobs: jobs["1-rank"]["state"] in OVER)["1-rank"]
    assert job["state"] == "cancelled"


def test_a_script_on_a_cluster_of_its_own_with_names_that_shells_would_change(tmp_path):
    place = tmp_path / 'it\'s a "place" $HOME é'
    place.mkdir()
    script = place / "tell me.py"
    script.write_text(
        "import json, os, sys, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print('TOLD' + json.dumps([sys.argv[1:], os.environ['LINES_'], dist.get_world_size()]))\n"
        "dist.barrier()\n"  # else a quick rank may leave while the other is still connecting to it
        "dist.destroy_process_group()\n"
    )
    lines = "one\ntwo 'three' \"$HOME\" `id` é \\"
    words = ["a b", "it's", '"', "$(id)", "é\n2", ""]
    temp = tempfile.mkdtemp(prefix="ss", dir="/tmp")
    samestep("submit", "--on", "ray", "--address", "local", "--gpus", "2", "--env", f"LINES_={lines}",
             "--out", "jo bs", "--", "python", script, *words, cwd=place,
             env={"RAY_TMPDIR": temp})  # fmt: skip
    folder = place / "jo bs"
    job = until(folder, lambda jobs: jobs["2-ranks"]["state"] in OVER, 600)["2-ranks"]
    assert job["state"] == "finished", told(folder)
    for rank in range(2):
        said = (folder / "2-ranks" / "ranks" / f"{rank:05}" / "stdout.log").read_text()
        (line,) = [line for line in said.splitlines() if line.startswith("TOLD")]
        assert json.loads(line.removeprefix("TOLD")) == [words, lines, 2]
    assert any(Path(temp).iterdir()) and gone(temp), "its Ray ends with the job"
    shutil.rmtree(temp)
