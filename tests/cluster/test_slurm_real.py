"""A real Slurm: two nodes, a queue, preemption, limits; jobs of ours on it from `submit` to the record."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_scripts import DIFFERENT, OWN_LOOP

from samestep.cluster.slurm_queue import queue
from samestep.launcher import first_host

SAMESTEP = [sys.executable, "-m", "samestep"]
ENV = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def _empty_queue(lab):
    """No job of one test is left for the next."""
    yield
    deadline = time.monotonic() + 40
    while lab.run("squeue", "-h").strip():
        lab.run("scancel", "--user", "root")
        assert time.monotonic() < deadline, lab.run("squeue")
        time.sleep(0.5)


def run(*words, cwd=None, code=0):
    """What a command of Samestep's prints, which must end as expected."""
    done = subprocess.run(
        [*SAMESTEP, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=280,
        env={**os.environ, **ENV},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def jobs(folder, code=None):
    done = subprocess.run(
        [*SAMESTEP, "jobs", str(folder), "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode in ((0, 1) if code is None else (code,)), done.stderr
    return {job["name"]: job for job in json.loads(done.stdout)["jobs"]}


def until(folder, name, is_so, seconds=200):
    """Look at a job until something holds of it."""
    deadline = time.monotonic() + seconds
    while True:
        job = jobs(folder)[name]
        if is_so(job):
            return job
        said = [path.read_text() for path in folder.glob("jobs/*/slurm-*.out")]
        assert time.monotonic() < deadline, f"{job}\n{said}"
        time.sleep(0.5)


def is_over(job):
    return job["state"] not in ("pending", "running", "unknown")


def digest(folder):
    return json.loads((folder / "result.json").read_text())["digest"]


def reference(tmp_path, epochs):
    """The digest of one undisturbed rank on this machine."""
    out = tmp_path / "reference"
    run("train", "samestep.demo:digits", "--mode", "bitwise", "--threads", 1, "--set", f"epochs={epochs}",
        "--out", out)  # fmt: skip
    return digest(out)


SUBMIT = ("submit", "samestep.demo:digits", "--gpus-per-node", 1, "--mode", "bitwise", "--time", "10m")


def test_two_nodes_train_the_same_bits_as_one_rank(lab, tmp_path):
    out = tmp_path / 'it\'s a "run" $HOME é'
    lines = "first line\nsecond 'line' \"$HOME\" é"
    ids = run(*SUBMIT, "--gpus", 2, "--set", "epochs=2", "--env", f"SAMESTEP_LAB_LINES={lines}", "--out", out)
    assert ids.strip().isdecimal()
    assert lab.run("squeue", "-h", "-o", "%j").strip() == f"{out.name}-2-ranks"
    job = until(out, "2-ranks", is_over)
    assert job["state"] == "finished", job
    assert digest(out / "2-ranks") == reference(tmp_path, 2)
    record = json.loads((out / "2-ranks" / "record.json").read_text())
    assert record["world_size"] == 2
    said = (next(out.glob("jobs/2-ranks/slurm-*.out"))).read_text()
    assert "process 0 of 2 under srun" in said
    # the wait is the queue's own: from its record of the submission to the start
    (row,) = queue([ids.strip()])
    assert row.nodes == "n[1-2]" and first_host(row.nodes) == "n1"
    assert abs(job["wait_s"] - (row.start - row.since)) <= 2.0  # the queue counts in whole seconds
    events = [json.loads(line) for line in (out / "2-ranks" / "events.jsonl").read_text().splitlines()]
    assert [e["exit_code"] for e in events if e["event"] == "job"] == [0]
    assert lines in json.loads((out / "jobs" / "2-ranks" / "request.json").read_text())["env"].values()


def test_preempted_and_requeued_ends_with_the_undisturbed_digest(lab, tmp_path):
    out = tmp_path / "preempted"
    run(*SUBMIT, "--gpus", 2, "--set", "epochs=12", "--out", out)
    until(out, "2-ranks", lambda job: job["step"] > 0)
    script = tmp_path / "urgent.sh"
    script.write_text("#!/bin/sh\nsleep 1\n")
    command = ["sbatch", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", str(script)]
    subprocess.run(command, check=True, capture_output=True)
    job = until(out, "2-ranks", is_over)
    assert (job["state"], job["attempts"]) == ("finished", 2), job
    assert digest(out / "2-ranks") == reference(tmp_path, 12)
    rows = [json.loads(line) for line in (out / "jobs/2-ranks/attempts-0.jsonl").read_text().splitlines()]
    first, second = (row for row in rows if row["event"] == "started")
    stopped = next(row for row in rows if row["event"] == "ended")
    assert stopped["code"] == 75 and stopped["requeued"] and 0 < stopped["step"] < 288
    assert job["wait_s"] == pytest.approx(first["wait_s"] + second["wait_s"])
    events = [json.loads(line) for line in (out / "2-ranks/events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events if e["event"] in ("started", "resumed")] == ["started", "resumed"]


def test_before_the_time_limit_it_saves_and_is_requeued(lab, tmp_path):
    (tmp_path / "own_loop.py").write_text(OWN_LOOP)
    task, script = tmp_path / "task", tmp_path / "script"
    # Slurm may tell a job up to a minute early, so a limit of two minutes with a lead of 30 s is enough
    run(*SUBMIT[:-1], "2m", "--gpus", 1, "--set", "epochs=100000", "--out", task)
    run("submit", "--gpus", 1, "--time", "2m", "--out", script, "--", "python", "own_loop.py", cwd=tmp_path)
    for out in (task, script):
        until(out, "1-rank", lambda job: job["attempts"] > 1, 180)
        rows = [json.loads(line) for line in (out / "jobs/1-rank/attempts-0.jsonl").read_text().splitlines()]
        stopped = next(row for row in rows if row["event"] == "ended")
        assert stopped["code"] == 75 and stopped["requeued"] and stopped["step"] > 0
        assert stopped["run_s"] < 120
    for out in (task, script):
        run("jobs", out, "--cancel")
        job = until(out, "1-rank", is_over, 60)
        assert job["state"] == "cancelled", job


def test_cancelled_elsewhere_is_said_and_not_requeued(lab, tmp_path):
    out = tmp_path / "cancelled"
    number = run(*SUBMIT, "--gpus", 1, "--set", "epochs=100000", "--out", out).strip()
    until(out, "1-rank", lambda job: job["step"] > 0)
    lab.run("scancel", number, check=True)
    job = until(out, "1-rank", is_over, 90)
    assert job["state"] == "cancelled" and "cancelled" in job["reason"]
    time.sleep(2)
    assert lab.run("squeue", "-h").strip() == ""


def test_a_sweep_is_an_array(lab, tmp_path):
    out = tmp_path / "sweep"
    ids = run(*SUBMIT, "--gpus", 1, "--set", "epochs=1", "--sweep", "seed=0,1", "--out", out).split()
    assert [number.partition("_")[2] for number in ids] == ["0", "1"]
    found = {name: until(out, name, is_over) for name in ("1-rank-seed=0", "1-rank-seed=1")}
    assert {job["state"] for job in found.values()} == {"finished"}, found
    assert digest(out / "1-rank-seed=0") != digest(out / "1-rank-seed=1")


def test_a_job_that_slurm_does_not_take_is_refused_with_its_reason(lab, tmp_path):
    said = run(*SUBMIT, "--partition", "nowhere", "--out", tmp_path / "out", code=2)
    assert "Slurm did not take the job" in said and "invalid partition" in said.lower()


def test_what_is_asked_for_is_what_the_queue_knows(lab, tmp_path):
    out = tmp_path / "asked"
    run("submit", "samestep.demo:digits", "--gpus", 2, "--cpus-per-gpu", 2, "--memory", "500M",
        "--time", "7m", "--constraint", "lab", "--option", "begin=now+1hour", "--out", out)  # fmt: skip
    told = lab.run(
        "squeue", "-h", "-O", "NumNodes:|,cpus-per-task:|,MinMemory:|,TimeLimit:|,tres-per-node:|,Feature:|"
    )
    nodes, cpus, memory, limit, gpus, feature = (part.strip() for part in told.strip().split("|")[:6])
    assert (nodes, cpus, memory, limit, feature) == ("1", "4", "1000M", "7:00", "lab")
    assert gpus.endswith("gpu:2")
    job = jobs(out)["2-ranks"]
    assert job["state"] == "pending" and "BeginTime" in job["reason"] and job["wait_s"] is not None
    run("jobs", out, "--cancel")
    assert until(out, "2-ranks", is_over, 30)["state"] == "cancelled"


def test_over_its_memory_it_is_said_with_the_number_to_ask_for(lab, tmp_path):
    script = tmp_path / "eat.py"
    script.write_text('import time\nkeep = b"x" * (900 * 2**20)\ntime.sleep(60)\n')
    out = tmp_path / "eaten"
    run("submit", "--memory", "500M", "--time", "5m", "--out", out, "--", "python", script)
    job = until(out, "1-rank", is_over, 90)
    assert job["state"] == "out of memory", job
    assert "--memory" in job["reason"]


@pytest.mark.parametrize("value", ["plain", "it's", 'a "b" c', "x\\y", "$HOME `id` é #no ; & |"])
def test_quoted_as_sbatch_reads_it(lab, tmp_path, value):
    from cluster_requests import request_of

    from samestep.cluster.slurm import script

    path = Path(tmp_path / "job.sh")
    path.write_text(script(request_of(options={"comment": value, "begin": "now+1hour"})))
    number = lab.run("sbatch", "--parsable", str(path), check=True).strip()
    assert lab.run("squeue", "-h", "-j", number, "-O", "Comment:200").strip() == value
    lab.run("scancel", number)


def test_a_script_below_srun_finds_its_place(lab, tmp_path):
    script = tmp_path / "who.py"
    script.write_text(
        "import samestep\nworld = samestep.init()\n"
        "print('PLACE', world.rank, world.size, world.launcher, world.gather_texts(str(world.rank)))\n"
    )
    done = subprocess.run(
        ["srun", "-N2", "--ntasks-per-node=1", sys.executable, str(script)],
        capture_output=True, text=True, timeout=100, env={**os.environ, **ENV},
    )  # fmt: skip
    places = sorted(line for line in done.stdout.splitlines() if line.startswith("PLACE"))
    assert places == [f"PLACE {rank} 2 srun ['0', '1']" for rank in (0, 1)], done.stderr


def test_the_doctor_below_srun_finds_its_place_and_that_both_nodes_are_one_machine(lab, tmp_path):
    done = subprocess.run(
        ["srun", "-N2", "--ntasks-per-node=1", *SAMESTEP, "doctor", "--json", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=170, env={**os.environ, **ENV, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    answer = json.loads(done.stdout)
    (node,) = answer["nodes"]
    assert node["ranks"] == 2, done.stderr
    assert {row["name"] for row in answer["exchanges"]} >= {"sum", "slices"}
    assert "under srun" in done.stderr
    assert (done.returncode == 0) == (not answer["findings"]), answer["findings"]


@pytest.mark.parametrize(
    ("words", "code", "verdicts"),
    [(["samestep.demo:digits"], 0, ("same", "equal")), (["--", "python", "script.py"], 1, ("different",))],
    ids=["yes", "no"],
)
def test_a_verification_is_one_job_which_is_finished_also_if_it_says_no(lab, tmp_path, words, code, verdicts):
    (tmp_path / "script.py").write_text(DIFFERENT)
    out = tmp_path / "verified"
    run("submit", "--run", "verify", "--gpus", "1,2", "--time", "10m", "--out", out, *words, cwd=tmp_path)
    job = until(out, "verify", is_over, 250)
    assert (job["state"], job["exit_code"]) == ("finished", code), job
    verdict = json.loads((out / "verify" / "verdict.json").read_text())["verdict"]
    assert verdict in verdicts and job["reason"] == f"answer: {verdict}; see verify/verdict.json"
    jobs(out, code=0)
