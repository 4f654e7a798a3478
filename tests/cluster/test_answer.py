"""A job whose answer is “no” has finished, whichever engine it is on; without an answer it has failed."""

import json
import os
import time
from dataclasses import replace

import pytest
import typer
from cluster_requests import request_of
from cluster_scripts import DIFFERENT, SLOWER
from test_submit_command import samestep

from samestep.cli.jobs import tell
from samestep.cluster.answer import Answer
from samestep.cluster.attempt import Attempt
from samestep.cluster.engines import NAMES
from samestep.cluster.ledger import Entry, Ledger
from samestep.cluster.looking import look
from samestep.cluster.request import Item
from samestep.record import write_json

NO = {"verify": {"verdict": "different"}, "scale": {"cells": []}, "train": {"status": "stopped"}}
FILE = {"verify": "verdict.json", "scale": "scale.json", "train": "result.json"}
TOLD = {"verify": "different", "scale": "not faster", "train": "stopped by itself"}


@pytest.mark.parametrize("command", NO)
def test_an_answer_is_one_that_was_written_since(tmp_path, command):
    answer = Answer(tmp_path, command)
    assert answer.told(1) == ""
    write_json(tmp_path / FILE[command], NO[command])
    assert answer.told(1) == f"answer: {TOLD[command]}; see {tmp_path.name}/{FILE[command]}"
    later = Answer(tmp_path, command)
    assert later.told(1) == "", "it is another attempt's"
    write_json(tmp_path / FILE[command], NO[command])
    assert later.told(1) == answer.told(1), "the same words, written again"


@pytest.mark.parametrize(
    ("command", "found", "code", "told"),
    [
        ("verify", {"verdict": "same"}, 0, "answer: same;"),
        ("verify", {"verdict": "inconclusive"}, 2, "no answer: inconclusive;"),
        ("verify", {"verdict": "different"}, 137, ""),
        ("scale", {"cells": []}, 0, "answer: faster, or too close to call;"),
        ("scale", {"cells": []}, 2, "no answer: not told;"),
        ("scale", {"cells": []}, 130, ""),
        ("train", {"status": "finished"}, 0, ""),
        ("train", {"status": "failed"}, 1, ""),
    ],
)
def test_the_answer_goes_with_the_exit_code(tmp_path, command, found, code, told):
    answer = Answer(tmp_path, command)
    write_json(tmp_path / FILE[command], found)
    assert answer.told(code).startswith(told) and bool(answer.told(code)) == bool(told)


# Every engine: what it says of a job that ended with exit code 1

QUEUE = "7|7|N/A|FAILED|NonZeroExitCode|100|130|190|1|0|n1|\n"
LOG = (
    "000 (7.000.000) 2026-11-16 10:00:00 Job submitted from host: <10.0.0.1:9618>\n...\n"
    "001 (7.000.000) 2026-11-16 10:01:00 Job executing on host: <10.0.0.9:9618>\n...\n"
    "005 (7.000.000) 2026-11-16 10:02:00 Job terminated.\n"
    "\t(1) Normal termination (return value 1)\n...\n"
)
IDS = {"slurm": "7", "htcondor": "7.0", "ray": f"{os.getpid()}.0.0", "local": f"{os.getpid()}.0.0"}
"""Of a runner, one that is gone: this process began at another time."""


def job_that_ended(folder, engine, command, answer=None):
    """A job as `submit` leaves it, whose one attempt ended with exit code 1; as it is seen then."""
    item = Item(name=command, words=(command,))
    request = replace(request_of(engine=engine), name=command, command=command, items=(item,))
    own = request.folder_in(folder)
    own.mkdir(parents=True)
    request.write(own)
    entry = Entry(
        id=IDS[engine], engine=engine, request=command, item=0, name=command, submitted_at=time.time()
    )
    Ledger(folder).submitted(entry)
    attempt = Attempt(own, 0, os.environ)
    attempt.out.mkdir()
    attempt.begin(30.0)
    if answer is not None:
        write_json(attempt.out / FILE[command], answer)
    attempt.end(1)
    if engine == "htcondor":  # which brings it home
        attempt.out.replace(folder / command)
        (own / "condor.log").write_text(LOG)
    (job,) = look(Ledger(folder))
    return job


@pytest.fixture(params=NAMES)
def engine(request, monkeypatch):
    """An engine that says of job 7 that it ended with exit code 1."""
    monkeypatch.setattr(
        "samestep.cluster.slurm_queue._ask", lambda command, env: QUEUE if command[0] == "squeue" else ""
    )
    return request.param


def exit_code_of(jobs, folder):
    with pytest.raises(typer.Exit) as ended:
        tell(jobs, as_json=True, folder=folder)
    return ended.value.exit_code


@pytest.mark.parametrize("command", NO)
def test_no_is_an_answer_on_every_engine(tmp_path, engine, command):
    job = job_that_ended(tmp_path, engine, command, NO[command])
    assert (job.sight.state, job.sight.exit_code, job.ending) == ("finished", 1, "")
    assert job.to_json()["reason"] == f"answer: {TOLD[command]}; see {command}/{FILE[command]}"
    assert exit_code_of([job], tmp_path) == 0
    assert look(Ledger(tmp_path)) == [job], "and so it stays"


@pytest.mark.parametrize("command", NO)
def test_without_an_answer_it_failed_on_every_engine(tmp_path, engine, command):
    job = job_that_ended(tmp_path, engine, command)
    assert (job.sight.state, job.sight.exit_code) == ("failed", 1)
    assert job.ending in ("exit code 1", "NonZeroExitCode")
    assert exit_code_of([job], tmp_path) == 1


# Real jobs on this machine


@pytest.mark.parametrize(("command", "script"), [("verify", DIFFERENT), ("scale", SLOWER)])
def test_a_real_job_that_says_no_is_finished(tmp_path, command, script):
    (tmp_path / "script.py").write_text(script)
    done = samestep("submit", "--on", "local", "--run", command, "--gpus", "1,2", "--out", "jobs", "--wait",
                    "--json", "--", "python", "script.py", cwd=tmp_path)  # fmt: skip
    (job,) = json.loads(done.stdout)["jobs"]
    said = (tmp_path / "jobs" / "jobs" / command / "local-0.out").read_text()
    assert (job["state"], job["exit_code"]) == ("finished", 1), said
    assert said.splitlines()[-1] == TOLD[command]
    again = samestep("jobs", "jobs", cwd=tmp_path)
    assert f"{command}: answer: {TOLD[command]}; see {command}/{FILE[command]}" in again.stdout


def test_a_real_job_that_breaks_off_with_the_same_exit_code_failed(tmp_path):
    (tmp_path / "script.py").write_text(DIFFERENT)
    broken = "import os, sys\nif 'verify' in sys.orig_argv:\n    os._exit(1)\n"
    (tmp_path / "sitecustomize.py").write_text(broken)
    done = samestep("submit", "--on", "local", "--run", "verify", "--env", f"PYTHONPATH={tmp_path}",
                    "--out", "jobs", "--wait", "--json", "--", "python", "script.py", cwd=tmp_path,
                    code=1)  # fmt: skip
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["state"], job["exit_code"], job["reason"]) == ("failed", 1, "exit code 1")
