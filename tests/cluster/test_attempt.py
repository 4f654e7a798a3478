"""What runs inside of a job: started by its engine's own script, stopped, started again."""

import json
import os
import subprocess
import sys
from dataclasses import replace

from cluster_requests import request_of

from samestep.cluster import slurm_inside
from samestep.cluster.attempt import Attempt
from samestep.cluster.htcondor import run_script
from samestep.cluster.request import Item


def training(epochs, **more):
    words = ("train", "--gpus", "2", "--threads", "1", "--mode", "bitwise", "--set", f"epochs={epochs}",
             "samestep.demo:digits")  # fmt: skip
    return request_of(items=1, python=sys.executable, **more), words


def test_below_htcondor_it_ends_for_its_checkpoint_and_goes_on(tmp_path):
    """run.sh as HTCondor starts it, in a scratch folder, with the variables that it sets."""
    request, words = training(24, engine="htcondor")  # more than fits into the first 8 s
    request = replace(request, items=(Item(name="2-ranks", words=words),), checkpoint_every_s=8)
    (tmp_path / "run.sh").write_text(run_script(request))
    env = {**os.environ, "_CONDOR_SCRATCH_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    codes = []
    for every_s in (8, 3600):
        replace(request, checkpoint_every_s=every_s).write(tmp_path)
        done = subprocess.run(["sh", "run.sh", "0"], cwd=tmp_path, env=env, capture_output=True, timeout=140)
        codes.append(done.returncode)
    assert codes == [85, 0], done.stderr
    undisturbed = subprocess.run(
        [sys.executable, "-m", "samestep", *words, "--json", "--out", str(tmp_path / "whole")],
        capture_output=True, text=True, timeout=150, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    digest = json.loads((tmp_path / "2-ranks" / "result.json").read_text())["digest"]
    assert digest == json.loads(undisturbed.stdout)["digest"]
    rows = [json.loads(line) for line in (tmp_path / "attempts-0.jsonl").read_text().splitlines()]
    assert [row["code"] for row in rows if row["event"] == "ended"] == codes


def attempt_at(tmp_path, **more):
    own = tmp_path / "jobs" / "2-ranks"
    own.mkdir(parents=True)
    request_of(**more).write(own)
    return Attempt(own, 0, {"SLURM_JOB_ID": "7"})


def test_below_slurm_srun_starts_it_once_a_node_and_it_resumes_if_it_was_begun(tmp_path):
    attempt = attempt_at(tmp_path, world_size=4, num_nodes=2, needs={"cpus_per_rank": 3})
    words = attempt.command()
    assert words[:3] == ["srun", "--nodes=2", "--ntasks=2"]
    assert "--cpus-per-task=6" in words and "--resume" not in words
    out = tmp_path / "4-ranks"
    assert words[words.index("--out") + 1] == str(out)
    out.mkdir()
    (out / "job.json").write_text("{}")
    assert "--resume" in attempt.command()


def test_no_attempt_is_asked_for_after_a_cancel_or_where_the_time_allows_no_step(
    tmp_path, monkeypatch, capsys
):
    attempt = attempt_at(tmp_path, needs={"time_s": 600})
    is_wanted = True
    monkeypatch.setattr(slurm_inside, "is_still_wanted", lambda env: is_wanted)
    assert attempt._may_requeue(0, 30.0), "preempted before its first step"
    assert not attempt._may_requeue(0, 500.0), "the time limit"
    assert "Ask for more time" in capsys.readouterr().err
    (tmp_path / "2-ranks").mkdir()
    (tmp_path / "2-ranks" / "result.json").write_text('{"steps": 5}')
    assert attempt._may_requeue(4, 500.0), "it made a step"
    is_wanted = False
    assert not attempt._may_requeue(4, 500.0)


def test_the_wait_is_that_of_the_queue(tmp_path, monkeypatch):
    attempt = attempt_at(tmp_path)
    attempt.env = {"SLURM_JOB_ID": "7"}
    line = "7|7|N/A|RUNNING|None|100|130|0|0|0|n1|"
    monkeypatch.setattr("samestep.cluster.slurm_queue._ask", lambda command, env: line)
    monkeypatch.setattr(attempt, "_run", lambda: 0)
    assert attempt.run() == 0
    rows = [json.loads(line) for line in (attempt.folder / "attempts-0.jsonl").read_text().splitlines()]
    assert rows[0]["wait_s"] == 30 and rows[1]["code"] == 0


def test_a_job_that_leaves_is_not_wanted_any_more(monkeypatch):
    """After scancel Slurm calls it COMPLETING, and gives its processes the time to save."""
    line = "7|7|N/A|{state}|None|100|130|0|0|0|n1|"
    for state, is_wanted in (
        ("RUNNING", True),
        ("COMPLETING", False),
        ("CANCELLED", False),
        ("PENDING", False),
    ):
        text = line.format(state=state)
        monkeypatch.setattr("samestep.cluster.slurm_queue._ask", lambda command, env, text=text: text)
        assert slurm_inside.is_still_wanted({"SLURM_JOB_ID": "7"}) == is_wanted, state
    monkeypatch.setattr("samestep.cluster.slurm_queue._ask", lambda command, env: "")
    assert not slurm_inside.is_still_wanted({"SLURM_JOB_ID": "7"})
