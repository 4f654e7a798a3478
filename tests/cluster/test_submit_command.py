"""`samestep submit` and `samestep jobs` on the command line; jobs on this machine from end to end."""

import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep.cluster import slurm_inside
from samestep.cluster.ledger import Entry, Ledger
from samestep.cluster.looking import LOST_S, look
from samestep.cluster.own_words import note
from samestep.cluster.request import Request
from samestep.record import write_json

DIGITS = "samestep.demo:digits"


def samestep(*words, cwd, code=0, env=None, prefix=("-m", "samestep")):
    done = subprocess.run(
        [sys.executable, *prefix, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **(env or {})},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def left_running(tmp_path):
    """A folder for jobs that go on without their submitter: whatever the test comes to, they are ended."""
    yield tmp_path / "jobs"
    subprocess.run([sys.executable, "-m", "samestep", "jobs", tmp_path / "jobs", "--cancel"], check=False)


def until(folder, is_so, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "samestep", "jobs", folder, "--json"], capture_output=True, text=True
        )
        found = {job["name"]: job for job in json.loads(done.stdout)["jobs"]}
        if is_so(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.3)


# On this machine


def test_local_jobs_run_one_after_the_other_and_leave_records(tmp_path):
    done = samestep("submit", DIGITS, "--gpus", "1,2", "--on", "local", "--mode", "bitwise",
                    "--set", "epochs=1", "--out", "jobs", "--wait", "--json", cwd=tmp_path)  # fmt: skip
    found = {job["name"]: job for job in json.loads(done.stdout)["jobs"]}
    assert {name: job["state"] for name, job in found.items()} == {
        "1-rank": "finished",
        "2-ranks": "finished",
    }
    digests = {json.loads((tmp_path / "jobs" / name / "result.json").read_text())["digest"] for name in found}
    assert len(digests) == 1
    # the second waited for the first
    assert found["2-ranks"]["wait_s"] >= found["1-rank"]["run_s"] - 2
    assert "1-rank (" in done.stderr and "): finished" in done.stderr
    again = samestep("jobs", "jobs", "--json", cwd=tmp_path)
    assert {job["state"] for job in json.loads(again.stdout)["jobs"]} == {"finished"}


def test_ctrl_c_leaves_jobs_running_and_cancel_ends_them(left_running, tmp_path):
    follow = subprocess.Popen(
        [sys.executable, "-m", "samestep", "submit", DIGITS, "--on", "local", "--set", "epochs=100000",
         "--out", "jobs", "--wait"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    folder = left_running
    deadline = time.monotonic() + 60
    while not (folder / "1-rank" / "progress.json").exists():
        assert time.monotonic() < deadline and follow.poll() is None, follow.communicate()
        time.sleep(0.1)
    os.killpg(follow.pid, signal.SIGINT)
    _, said = follow.communicate(timeout=30)
    assert follow.returncode == 130 and "the jobs go on" in said
    step = until(folder, lambda jobs: jobs["1-rank"]["state"] == "running")["1-rank"]["step"]
    until(folder, lambda jobs: jobs["1-rank"]["step"] > step)
    done = samestep("jobs", folder, "--cancel", cwd=tmp_path)
    assert "cancelled: 1-rank" in done.stderr
    job = until(folder, lambda jobs: jobs["1-rank"]["state"] not in ("running", "pending"), 60)["1-rank"]
    assert job["state"] == "stopped" and job["exit_code"] == 75
    # handed over again it goes on from where it was
    done = samestep("submit", DIGITS, "--on", "local", "--set", f"epochs={job['step'] // 24 + 1}",
                    "--out", "jobs", "--wait", "--json", cwd=tmp_path)  # fmt: skip
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["state"] == "finished"
    events = [
        json.loads(row)["event"] for row in (folder / "1-rank" / "events.jsonl").read_text().splitlines()
    ]
    assert "resumed" in events


def test_environment_arguments_and_paths_arrive_as_they_were_written(tmp_path):
    place = tmp_path / 'it\'s a "place" $HOME é'
    place.mkdir()
    script = place / "tell me.py"
    script.write_text(
        "import os, sys, json\nprint('TOLD' + json.dumps([sys.argv[1:], os.environ['LINES_']]))\n"
    )
    lines = "one\ntwo 'three' \"$HOME\" `id` é \\"
    words = ["a b", "it's", '"', "$(id)", "é\n2", ""]
    done = samestep("submit", "--on", "local", "--env", f"LINES_={lines}", "--out", "jo bs", "--", "python",
                    script, *words, cwd=place)  # fmt: skip
    # the command that is said is one that a shell gives back word by word
    said = done.stderr.partition("see them with: ")[2].strip()
    assert shlex.split(said) == ["samestep", "jobs", str(place / "jo bs")]
    until(place / "jo bs", lambda jobs: jobs["1-rank"]["state"] == "finished")
    said = (place / "jo bs" / "1-rank" / "ranks" / "00000" / "stdout.log").read_text()
    told = next(line for line in said.splitlines() if line.startswith("TOLD"))
    assert json.loads(told.removeprefix("TOLD")) == [words, lines]


# On a login node


def test_neither_command_needs_torch(tmp_path):
    start = "import sys; sys.modules['torch'] = None; from samestep.cli import main; main()"
    done = samestep("submit", DIGITS, "--gpus", "1,16", "--dry-run", "--out", "jobs", cwd=tmp_path,
                    prefix=("-c", start))  # fmt: skip
    assert done.stdout.count("#SBATCH --nodes=") == 2 and "--nodes=2" in done.stdout
    assert not (tmp_path / "jobs").exists()
    Ledger(tmp_path / "jobs").submitted(entry("7"))
    write_request(tmp_path / "jobs")
    samestep("jobs", "jobs", cwd=tmp_path, prefix=("-c", start))


def test_dry_run_shows_every_file(tmp_path):
    done = samestep("submit", DIGITS, "--on", "htcondor", "--gpus", "1,2", "--dry-run", "--json",
                    "--out", "o", cwd=tmp_path)  # fmt: skip
    names = {Path(path).name for path in json.loads(done.stdout)["files"]}
    assert names == {"request.json", "submit.sub", "run.sh"}
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([DIGITS, "--gpus", "1,x"], "name world sizes with commas"),
        ([DIGITS, "--gpus", "10", "--gpus-per-node", "4"], "equally many"),
        ([DIGITS, "--time", "soon"], "is no time"),
        ([DIGITS, "--memory", "much"], "is no amount of memory"),
        ([DIGITS, "--time", "1h", "--like", "x"], "leave one out"),
        ([DIGITS, "--like", "x"], "record"),
        ([DIGITS, "--like", "x", "--run", "verify"], "give --time"),
        ([DIGITS, "--on", "htcondor", "--partition", "gpu"], "is Slurm's"),
        ([DIGITS, "--run", "verify", "--mode", "bitwise"], "for trainings"),
        ([DIGITS, "--mode", "bitwise", "--gpus", "16"], "a rank would have no shard"),
        ([DIGITS, "--env", "A"], "write NAME=VALUE"),
        ([DIGITS, "--option", "time=5"], "sets itself"),
        (["no_such.py"], "There is no file"),
        (["--", "python", "no_such.py"], "not a file"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(tmp_path, words, match):
    done = samestep("submit", "--dry-run", *words, cwd=tmp_path, code=2)
    assert match in done.stderr and "Traceback" not in done.stderr


def test_no_scheduler_on_the_path(tmp_path):
    for engine, tool in (("slurm", "sbatch"), ("htcondor", "condor_submit")):
        done = samestep("submit", DIGITS, "--on", engine, cwd=tmp_path, code=2, env={"PATH": str(tmp_path)})
        assert f"{tool}" in done.stderr and "not on the PATH" in done.stderr
    assert not list(tmp_path.glob("runs/*/jobs"))


def tool(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_job_that_is_not_taken_is_told_with_the_schedulers_reason(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("squeue", "scancel", "condor_rm"):
        tool(tools, name, "exit 0")
    tool(tools, "sbatch", 'echo "sbatch: error: Invalid account: ada" >&2; exit 1')
    tool(tools, "condor_submit", 'echo "ERROR: out of quota" >&2; exit 1')
    env = {"PATH": f"{tools}:/usr/bin:/bin"}
    for engine, reason in (("slurm", "Invalid account: ada"), ("htcondor", "out of quota")):
        done = samestep("submit", DIGITS, "--on", engine, "--out", engine, cwd=tmp_path, code=2, env=env)
        assert reason in done.stderr and "did not take the job" in done.stderr
        assert not (tmp_path / engine / "jobs.jsonl").exists()


# How jobs stand


def entry(number, engine="slurm", age_s=0.0):
    return Entry(
        id=number, engine=engine, request="1-rank", item=0, name="1-rank", submitted_at=time.time() - age_s
    )


def write_request(folder, engine="slurm"):
    from cluster_requests import request_of

    request: Request = request_of(world_size=1, name="1-rank", engine=engine)
    own = request.folder_in(folder)
    own.mkdir(parents=True, exist_ok=True)
    request.write(own)
    return own


@pytest.fixture
def forgetful(monkeypatch):
    """A scheduler that knows no job any more."""
    monkeypatch.setattr("samestep.cluster.slurm_queue._ask", lambda command, env: "")


def test_a_job_that_nobody_knows_and_that_left_no_word_is_unknown(tmp_path, forgetful):
    ledger = Ledger(tmp_path)
    ledger.submitted(entry("7", age_s=2 * LOST_S))
    write_request(tmp_path)
    (job,) = look(ledger)
    assert job.sight.state == "unknown" and "slurm does not know it any more" in job.sight.reason
    fresh = Ledger(tmp_path / "fresh")
    fresh.submitted(entry("8"))
    write_request(fresh.folder)
    assert look(fresh)[0].sight.state == "pending", "schedulers take a moment"


def test_a_job_that_nobody_knows_is_as_it_said_itself_and_over_once_it_was_seen_so(tmp_path, forgetful):
    ledger = Ledger(tmp_path)
    ledger.submitted(entry("7", age_s=2 * LOST_S))
    own = write_request(tmp_path)
    note(own, 0, "started", wait_s=40.0, node="n1")
    note(own, 0, "ended", code=75, run_s=10.0, requeued=True)
    note(own, 0, "started", wait_s=2.0, node="n1")
    note(own, 0, "ended", code=0, run_s=5.0, requeued=False)
    (job,) = look(ledger)
    assert (job.sight.state, job.sight.wait_s, job.sight.run_s) == ("finished", 42.0, 15.0)
    assert job.sight.num_attempts == 2
    assert "never arrived" in job.ending, "there is no result.json"
    for path in own.glob("attempts-*"):
        path.unlink()
    assert look(ledger)[0].sight == job.sight


def test_an_attempt_that_was_killed_ran_until_then_and_not_until_somebody_looks(tmp_path, monkeypatch):
    said = {"state": "TIMEOUT", "end": "160"}
    monkeypatch.setattr(
        "samestep.cluster.slurm_queue._ask",
        lambda command, env: (
            f"7|7|N/A|{said['state']}|None|40|100|{said['end']}|0|0|n1|" if command[0] == "squeue" else ""
        ),
    )
    own = write_request(tmp_path)
    note(own, 0, "started", wait_s=60.0, node="n1")
    rows = [json.loads(row) for row in (own / "attempts-0.jsonl").read_text().splitlines()]
    rows[0]["time"] = time.time() - 86400  # and nobody has looked since
    (own / "attempts-0.jsonl").write_text(json.dumps(rows[0]) + "\n")
    (tmp_path / "1-rank").mkdir()
    write_json(tmp_path / "1-rank" / "record.json", {"num_steps": 1000})
    write_json(tmp_path / "1-rank" / "progress.json", {"step": 100})
    ledger = Ledger(tmp_path)
    ledger.submitted(entry("7"))
    (job,) = look(ledger)
    assert (job.sight.state, job.sight.wait_s, job.sight.run_s) == ("out of time", 60.0, 60.0)
    assert job.ending.endswith("ask for --time 00:11:00"), "1.1 times ten times the minute that it had"
    again = Ledger(tmp_path / "requeued")
    shutil.copytree(tmp_path / "jobs", again.folder / "jobs")
    again.submitted(entry("7"))
    said |= {"state": "PENDING", "end": "N/A"}
    assert look(again)[0].sight.run_s == 0.0, "of an attempt that was lost nobody knows how long it ran"
    said |= {"state": "RUNNING"}
    assert look(again)[0].sight.run_s >= 86400, "but one that is at work"


@pytest.mark.parametrize(
    ("squeue", "said"),
    [
        (None, "squeue is not on the PATH of this machine"),
        ('echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1', "Unable to contact"),
        ("exit 3", "squeue ended with 3"),
    ],
    ids=["no command", "no controller", "no word"],
)
def test_a_scheduler_that_cannot_be_asked_has_not_forgotten_its_jobs(tmp_path, monkeypatch, squeue, said):
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    ledger = Ledger(tmp_path)
    ledger.submitted(entry("7", age_s=2 * LOST_S))
    own = write_request(tmp_path)
    note(own, 0, "started", wait_s=40.0, node="n1")
    if squeue is not None:
        tool(tools, "squeue", squeue)
    before = ledger._path.read_text()
    (job,) = look(ledger)
    assert job.sight.state == "running" and job.sight.reason.startswith(
        "as it was last seen; slurm could not"
    )
    assert said in job.sight.reason
    assert ledger._path.read_text() == before, "nothing new is known"
    # the negative control: a queue that answers, and does not know it
    tool(tools, "squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    assert look(ledger)[0].sight.state == "unknown"
    # its own word of its end counts, whoever cannot be asked
    note(own, 0, "ended", code=0, run_s=5.0, requeued=False)
    (tools / "squeue").unlink()
    assert look(ledger)[0].sight.state == "finished"


def test_a_busy_controller_does_not_cost_the_rest_of_a_training(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_inside, "_PAUSE_S", 0.0)
    row = "7|7|N/A|RUNNING|None|1|2|N/A|0|0|n1|"
    once = f'test -e {tmp_path}/asked && {{ echo "{row}"; exit 0; }}; : > {tmp_path}/asked; exit 1'
    tool(tmp_path, "squeue", once)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    monkeypatch.setenv("PATH", env["PATH"])
    assert slurm_inside.is_still_wanted(env) and (tmp_path / "asked").exists()
    tool(tmp_path, "squeue", "exit 1")
    assert not slurm_inside.is_still_wanted(env)
    assert slurm_inside.job(env).wait_s is None


@pytest.mark.parametrize(
    ("engine", "told"),
    [("slurm", "JobLaunchFailure; it wrote nothing down: does its node see"), ("htcondor", "condor-0.err")],
)
def test_a_job_that_failed_before_it_began_asks_what_its_node_sees(tmp_path, monkeypatch, engine, told):
    row = "7|7|N/A|FAILED|JobLaunchFailure|1|2|3|1|0|n1|"
    monkeypatch.setattr(
        "samestep.cluster.slurm_queue._ask", lambda command, env: row if command[0] == "squeue" else ""
    )
    ledger = Ledger(tmp_path)
    ledger.submitted(entry("7" if engine == "slurm" else "7.0", engine))
    own = write_request(tmp_path, engine)
    (own / "condor.log").write_text(
        "000 (7.000.000) 2026-11-16 10:00:00 Job submitted from host: <10.0.0.1:9618>\n...\n"
        "005 (7.000.000) 2026-11-16 10:02:00 Job terminated.\n\t(1) Normal termination (return value 127)\n"
    )
    (job,) = look(ledger)
    assert job.sight.state == "failed" and told in job.ending and str(own) in job.ending
    note(own, 0, "started", wait_s=1.0, node="n1")
    note(own, 0, "ended", code=127, run_s=5.0, requeued=False)
    fresh = Ledger(tmp_path / "fresh")
    shutil.copytree(own, tmp_path / "fresh" / "jobs" / "1-rank")
    fresh.submitted(ledger.entries[0])
    assert "wrote nothing" not in look(fresh)[0].ending


def test_ranks_on_the_cpu_are_remarked_on_where_gpus_were_asked_for(tmp_path, forgetful):
    ledger = Ledger(tmp_path)
    ledger.submitted(entry("7"))
    write_request(tmp_path)
    assert look(ledger)[0].remark == ""
    (tmp_path / "1-rank").mkdir()
    write_json(tmp_path / "1-rank" / "record.json", {"devices": ["cpu"]})
    (job,) = look(ledger)
    assert "none was found" in job.remark and job.to_json()["remark"] == job.remark
    write_json(tmp_path / "1-rank" / "record.json", {"devices": ["cuda NVIDIA A100"]})
    assert look(ledger)[0].remark == ""


def test_a_folder_without_jobs_is_refused(tmp_path):
    done = samestep("jobs", tmp_path, cwd=tmp_path, code=2)
    assert "holds no jobs.jsonl" in done.stderr


def test_what_runs_already_is_not_handed_over_again(tmp_path):
    samestep("submit", DIGITS, "--on", "local", "--set", "epochs=100000", "--out", "jobs", cwd=tmp_path)
    try:
        done = samestep("submit", DIGITS, "--on", "local", "--out", "jobs", cwd=tmp_path, code=2)
        assert "was handed over before" in done.stderr
    finally:
        samestep("jobs", "jobs", "--cancel", cwd=tmp_path)
    until(tmp_path / "jobs", lambda jobs: jobs["1-rank"]["state"] in ("stopped", "cancelled", "failed"), 60)
