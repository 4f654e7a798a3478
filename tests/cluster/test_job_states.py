"""States of jobs, as schedulers tell them, in one way for all; and what to ask for next time."""

import sys
import time

import pytest

from samestep.cluster import runner
from samestep.cluster.condor_log import sights_in
from samestep.cluster.jobs import Progress, Sight, ending_of
from samestep.cluster.own_words import progress_of
from samestep.cluster.request import Needs, bytes_of, seconds_of
from samestep.cluster.slurm import _told_by_accounting, sight_with
from samestep.cluster.slurm_queue import STATES, accounting_rows, queue_row
from samestep.record import write_json

NEEDS = Needs(world_size=2, time_s=3600, memory_per_rank_bytes=2**30)


def asked_for(sentence, option):
    """The value after an option in a sentence."""
    return sentence.partition(f"{option} ")[2].split()[0]


def test_a_run_that_goes_on_stands_where_it_was_saved_until_its_next_step(tmp_path):
    assert progress_of(tmp_path, "train") == Progress()
    write_json(tmp_path / "record.json", {"num_steps": 100, "resumed_at_step": 40, "devices": ["cpu"]})
    assert progress_of(tmp_path, "train") == Progress(step=40, num_steps=100, devices=("cpu",))
    write_json(tmp_path / "progress.json", {"step": 41})
    assert progress_of(tmp_path, "train").step == 41
    write_json(tmp_path / "result.json", {"steps": 60})
    assert progress_of(tmp_path, "train").step == 60


@pytest.mark.parametrize(
    ("sight", "told"),
    [
        (Sight(state="cancelled"), "cancelled"),
        (Sight(state="cancelled", reason="by 1000"), "cancelled by 1000"),
        (Sight(state="cancelled", reason="its runner is gone"), "cancelled: its runner is gone"),
        (Sight(state="failed", exit_code=3), "exit code 3"),
        (
            Sight(state="stopped", exit_code=75),
            "it was asked to stop, and has saved; the same submit goes on",
        ),
        (Sight(state="stopped", reason="PREEMPTED"), "PREEMPTED"),
    ],
)
def test_an_end_is_told_in_words(sight, told):
    assert ending_of(sight, NEEDS, Progress()).startswith(told)


def test_out_of_time_says_how_much_the_rest_needs():
    sight = Sight(state="out of time", run_s=3600.0)
    told = ending_of(sight, NEEDS, Progress(step=250, num_steps=1000))
    assert "250 of 1000 steps" in told and "01:00:00" in told
    # 4 times as long, and a tenth more
    assert seconds_of(asked_for(told, "--time")) == pytest.approx(4 * 3600 * 1.1, abs=60)
    unknown = ending_of(sight, NEEDS, Progress())
    assert seconds_of(asked_for(unknown, "--time")) == 7200


def test_out_of_memory_says_more_than_it_used():
    used = ending_of(Sight(state="out of memory", used_memory_bytes=3 * 2**30), NEEDS, Progress())
    assert bytes_of(asked_for(used, "--memory")) == 3 * 2**30 * 3 // 2 // 2
    limit = ending_of(Sight(state="out of memory"), NEEDS, Progress())
    assert bytes_of(asked_for(limit, "--memory")) == 2**30 * 3 // 2


@pytest.mark.parametrize(
    ("sight", "progress", "expected"),
    [
        (Sight(state="finished"), Progress(has_answer=True), ""),
        (Sight(state="finished"), Progress(), "never arrived"),
        (Sight(state="failed", exit_code=2), Progress(reason="Rank 1 raised"), "Rank 1 raised"),
        (Sight(state="failed", exit_code=7), Progress(), "exit code 7"),
        (Sight(state="node failed", node="n7"), Progress(), "(n7)"),
        (Sight(state="cancelled", reason="by 1000"), Progress(), "cancelled by 1000"),
        (Sight(state="running"), Progress(), ""),
    ],
)
def test_endings_are_said(sight, progress, expected):
    told = ending_of(sight, NEEDS, progress)
    assert (expected in told) if expected else told == ""


# Slurm


def line(state="RUNNING", *, task="N/A", reason="None", submit=100, start=130, end=190, code=0, nodes="n1"):
    return f"7|5|{task}|{state}|{reason}|{submit}|{start}|{end}|{code}|1|{nodes}|"


def test_a_row_of_the_queue_becomes_a_sight():
    running = queue_row(line()).sight(now=160)
    assert (running.state, running.wait_s, running.run_s, running.num_attempts) == ("running", 30, 30, 2)
    over = queue_row(line("COMPLETED")).sight(now=999)
    assert (over.state, over.wait_s, over.run_s) == ("finished", 30, 60)
    pending = queue_row(line("PENDING", reason="Priority", start=500, end=0, nodes="")).sight(now=160)
    assert (pending.state, pending.reason, pending.wait_s, pending.run_s) == ("pending", "Priority", 60, None)
    assert pending.num_attempts == 1, "that which was before it was requeued"
    never = queue_row(line("CANCELLED", reason="Priority", start=150, end=150, nodes="")).sight(now=999)
    assert (never.state, never.reason, never.wait_s, never.run_s) == ("cancelled", "", 50, None)
    assert queue_row(line("COMPLETING")).is_leaving and not queue_row(line()).is_leaving
    assert queue_row(line(task="3")).id == "5_3"
    assert queue_row("slurm_load_jobs error: Invalid job id specified") is None
    assert queue_row(line("SOMETHING_NEW")).state == "unknown"


# as sacct of Slurm 22.05 with slurmdbd printed it for a job that was requeued once and one over its memory
ACCOUNTING = """\
1|REQUEUED|1794818621|1794818621|1794818637|0:0|n[1-2]|
1.batch|CANCELLED|1794818621|1794818621|1794818642|0:9|n1|27744K
1.0|CANCELLED|1794818621|1794818621|1794818644|0:9|n[1-2]|877580K
2|FAILED|1794818638|1794818645|1794818651|9:0|n1|
2.batch|FAILED|1794818645|1794818645|1794818651|9:0|n1|27452K
2.0|CANCELLED by 0|1794818645|1794818645|1794818651|0:9|n1|893192K
1|COMPLETED|1794818645|1794818651|1794818687|0:0|n[1-2]|
1.batch|COMPLETED|1794818651|1794818651|1794818687|0:0|n1|27812K
1.0|COMPLETED|1794818651|1794818651|1794818686|0:0|n[1-2]|878356K
8|CANCELLED by 1000|1794818600|Unknown|1794818650|0:0|None assigned|
9|OUT_OF_MEMORY|1794818600|1794818600|1794818650|0:125|n1|
"""


def test_accounting_adds_up_all_attempts():
    found = _told_by_accounting(accounting_rows(ACCOUNTING), now=1794819999)
    job = found["1"]
    assert (job.state, job.wait_s, job.run_s, job.num_attempts) == ("finished", 6, 16 + 36, 2)
    assert job.used_memory_bytes == 878356 * 1024
    assert (found["2"].state, found["2"].wait_s, found["2"].used_memory_bytes) == ("failed", 7, 893192 * 1024)
    assert (found["8"].state, found["8"].reason, found["8"].wait_s) == ("cancelled", "by 1000", 50)
    assert found["9"].state == "out of memory"
    assert accounting_rows("Slurm accounting storage is disabled\n") == []


def test_a_step_over_its_memory_is_seen_in_the_output():
    failed = Sight(state="failed", exit_code=137)
    said = "slurmstepd-n1: error: StepId=1.0 exceeded memory limit (1216225280 > 524288000), being killed\n"
    assert sight_with(failed, said).used_memory_bytes == 1216225280
    assert sight_with(failed, "Detected 1 oom-kill event(s) in StepId=1.0").state == "out of memory"
    assert sight_with(failed, "ValueError: no").state == "failed"
    assert sight_with(Sight(state="finished"), said).state == "finished"


def test_every_state_of_slurm_has_a_name():
    # JOB STATE CODES of squeue(1)
    assert len(STATES) == 24


# HTCondor, as its manual shows events: https://htcondor.readthedocs.io/en/latest/codes-other-values/job-event-log-codes.html

SUBMITTED = (
    "000 (14.000.000) 2026-11-16 10:00:00 Job submitted from host: <10.0.0.1:9618?addrs=10.0.0.1-9618>\n...\n"
)
EXECUTING = "001 (14.000.000) {when} Job executing on host: <10.0.0.9:9618?addrs=10.0.0.9-9618>\n...\n"
EVICTED = "004 (14.000.000) {when} Job was evicted.\n\t(0) CPU times\n...\n"
DONE = "005 (14.000.000) {when} Job terminated.\n\t(1) Normal termination (return value {code})\n...\n"
KILLED = "005 (14.000.000) {when} Job terminated.\n\t(0) Abnormal termination (signal 9)\n...\n"
REMOVED = "009 (14.000.000) {when} Job was aborted.\n\tvia condor_rm (by user ada)\n...\n"
HELD = "012 (14.000.000) {when} Job was held.\n\t{reason}\n\tCode {code} Subcode 0\n...\n"
RELEASED = "013 (14.000.000) {when} Job was released.\n\tvia condor_release\n...\n"


def log(*events):
    times = iter(f"2026-11-16 10:{minute:02d}:00" for minute in range(1, 60))
    return SUBMITTED + "".join(
        text.replace("{when}", next(times)).replace("{code}", str(code)).replace("{reason}", reason)
        for text, code, reason in ((e if isinstance(e, tuple) else (e, 0, "")) for e in events)
    )


def seen(*events, now="2026-11-16 11:00:00"):
    return sights_in(log(*events), time.mktime(time.strptime(now, "%Y-%m-%d %H:%M:%S")))["14.0"]


def test_condors_log_tells_waits_and_runs_of_all_attempts():
    assert (seen().state, seen().wait_s, seen().run_s) == ("pending", 3600, None)
    running = seen(EXECUTING)
    assert (running.state, running.wait_s, running.run_s, running.node) == (
        "running",
        60,
        59 * 60,
        "10.0.0.9",
    )
    again = seen(EXECUTING, EVICTED, EXECUTING, DONE)
    assert (again.state, again.wait_s, again.run_s, again.num_attempts) == ("finished", 120, 120, 2)
    assert again.exit_code == 0


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        ([EXECUTING, (DONE, 2, "")], "failed", ""),
        ([EXECUTING, (DONE, 1, "")], "failed", ""),
        ([EXECUTING, KILLED], "failed", "signal 9"),
        ([REMOVED], "cancelled", "by user ada"),
        ([(HELD, 46, "The job exceeded allowed execute duration")], "out of time", "exceeded"),
        ([(HELD, 34, "Job has gone over memory limit of 128 megabytes.")], "out of memory", "memory"),
        ([(HELD, 12, "Transfer output files failure")], "pending", "Transfer output"),
        ([(HELD, 12, "x"), RELEASED], "pending", ""),
    ],
)
def test_condors_log_tells_ends(events, state, reason):
    sight = seen(*events)
    assert sight.state == state and reason in sight.reason


def test_half_an_event_and_old_times_do_no_harm():
    assert seen(EXECUTING).state == "running"
    text = log(EXECUTING) + "005 (14.000"
    assert sights_in(text, time.time())["14.0"].state == "running"
    old = "000 (3.001.000) 11/16 10:00:00 Job submitted from host: <x>\n...\n"
    assert sights_in(old, time.time())["3.1"].state == "pending"


def test_runners_take_turns_in_the_order_in_which_they_were_started(tmp_path):
    """One that comes to its line later, as the first does here, keeps its place."""
    program = (
        "import sys, time; from pathlib import Path; from samestep.cluster import runner\n"
        "folder, name, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])\n"
        "time.sleep(seconds); runner.await_turn(folder)\n"
        "with Path(folder.parent, 'order').open('a') as file: file.write(name)\n"
    )
    for name, seconds in (("a", 1.0), ("b", 0.0), ("c", 0.0)):
        folder = tmp_path / name
        folder.mkdir()
        runner.start([sys.executable, "-c", program, str(folder), name, str(seconds)], folder, [0])
    deadline = time.monotonic() + 60
    while len(said := (tmp_path / "order").read_text() if (tmp_path / "order").exists() else "") < 3:
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    assert said == "abc"
