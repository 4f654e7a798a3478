"""What Ray Train is asked for, what is refused, and how its jobs are counted; nothing here starts Ray."""

import json
import os
import socket
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from cluster_requests import request_of
from test_submit_command import DIGITS, samestep

from samestep.cluster import ray, runner
from samestep.cluster.attempt import Attempt
from samestep.cluster.ledger import append, rows_of
from samestep.cluster.own_words import attempts_path, note, sight_of
from samestep.cluster.ray import GRANTED, QUEUED, plan, waited_s
from samestep.cluster.ray_driver import _missing as missing_in
from samestep.cluster.request import Needs
from samestep.errors import ConfigError


def test_a_training_has_a_worker_a_rank_and_a_study_one_for_all():
    needs = Needs(world_size=4, cpus_per_rank=3, memory_per_rank_bytes=2**30)
    training = plan(request_of(engine="ray", world_size=4))
    assert training["scaling_config"]["num_workers"] == 4
    assert training["failure_config"] == {"max_failures": ray.FAILURES}
    study = plan(replace(request_of(engine="ray"), command="scale", needs=needs))
    assert study["scaling_config"]["num_workers"] == 1
    assert study["scaling_config"]["resources_per_worker"] == {"CPU": 12, "GPU": 4, "memory": 4 * 2**30}
    assert study["failure_config"] == {"max_failures": 0}, "it could not go on"


@pytest.mark.parametrize(
    ("options", "needs", "match"),
    [
        ({"address": "ray://head:10001"}, {}, "HOST:PORT"),
        ({"address": "http://head:8265"}, {}, "HOST:PORT"),
        ({"address": "head"}, {}, "HOST:PORT"),
        ({"max_failures": "-1"}, {}, "whole number"),
        ({"resource:disk": "much"}, {}, "whole number"),
        ({"max_failure": "1"}, {}, "no option that Ray has"),
        ({}, {"time_s": 60}, "Ray knows none"),
    ],
)
def test_what_ray_cannot_do_is_refused(options, needs, match):
    with pytest.raises(ConfigError, match=match):
        plan(request_of(engine="ray", options=options, needs=needs))


def test_dry_run_shows_the_trainer_and_hands_over_nothing(tmp_path):
    words = (
        "submit",
        DIGITS,
        "--on",
        "ray",
        "--gpus",
        "1,2",
        "--address",
        "head:6379",
        "--dry-run",
        "--json",
    )
    done = samestep(*words, "--out", "o", cwd=tmp_path, prefix=WITHOUT)
    files = {Path(path).parts[-2:]: text for path, text in json.loads(done.stdout)["files"].items()}
    assert set(files) == {
        (f"{n}", name) for n in ("1-rank", "2-ranks") for name in ("request.json", "trainer.json")
    }
    assert json.loads(files["2-ranks", "trainer.json"])["address"] == "head:6379"
    assert not (tmp_path / "o").exists()


WITHOUT = (
    "-c",
    "import sys; sys.modules['torch'] = sys.modules['ray'] = None; from samestep.cli import main; main()",
)
"""Python on a login node: neither torch nor Ray can be loaded."""


def test_the_address_is_rays_own_variable_or_a_new_cluster(tmp_path):
    words = ("submit", DIGITS, "--on", "ray", "--dry-run", "--json", "--out", "o")
    for env, address in (({"RAY_ADDRESS": "head:1234"}, "head:1234"), ({"RAY_ADDRESS": ""}, "local")):
        (text,) = [
            text
            for path, text in json.loads(samestep(*words, cwd=tmp_path, env=env).stdout)["files"].items()
            if path.endswith("trainer.json")
        ]
        assert json.loads(text)["address"] == address
    done = samestep(
        "submit", DIGITS, "--on", "local", "--address", "head:1", "--dry-run", cwd=tmp_path, code=2
    )
    assert "is Ray's" in done.stderr


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'samestep[ray]'")
def test_an_address_where_nobody_is_is_refused_before_anything_is_handed_over(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"  # taken, and nobody listens
        done = samestep(
            "submit", DIGITS, "--on", "ray", "--address", address, "--out", "o", cwd=tmp_path, code=2
        )
    assert f"--address is {address}, where no Ray cluster answers" in done.stderr
    assert not (tmp_path / "o" / "jobs.jsonl").exists()


def test_without_ray_the_error_says_how_to_get_it(tmp_path):
    done = samestep("submit", DIGITS, "--on", "ray", "--out", "o", cwd=tmp_path, code=2, prefix=WITHOUT)
    assert 'pip install "ray[train]"' in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()


# How jobs are counted


def attempt_in(tmp_path):
    own = tmp_path / "jobs" / "2-ranks"
    own.mkdir(parents=True)
    request_of(engine="ray").write(own)
    return Attempt(own, 0, os.environ)


def told(attempt, event, seconds, **more):
    """Have something happen so many seconds after the year 1970."""
    append(attempts_path(attempt.folder, 0), {"event": event, "time": seconds, **more})


def test_the_wait_is_until_ray_had_all_resources_and_begins_again_after_a_loss(tmp_path):
    attempt = attempt_in(tmp_path)
    told(attempt, "submitted", 90.0)
    told(attempt, QUEUED, 100.0, held_s=5.0)
    told(attempt, GRANTED, 130.0)
    assert waited_s(attempt.folder, 0) == 35.0, "the start of Ray itself is no wait"
    told(attempt, "started", 140.0, wait_s=35.0)
    told(attempt, "ended", 200.0, code=137, run_s=60.0, requeued=True)
    told(attempt, QUEUED, 210.0)
    told(attempt, GRANTED, 213.0)
    assert waited_s(attempt.folder, 0) == 3.0


def test_a_wait_of_which_ray_said_nothing_lasts_until_now(tmp_path):
    attempt = attempt_in(tmp_path)
    told(attempt, QUEUED, time.time() - 50.0, held_s=0.0)
    assert 50.0 <= waited_s(attempt.folder, 0) < 55.0


def test_an_end_is_counted_once_whoever_tells_of_it(tmp_path):
    attempt = attempt_in(tmp_path)
    told(attempt, QUEUED, time.time() - 30.0, held_s=0.0)
    attempt.begin(2.0)
    attempt.end(137, requeued=True, reason="Ray lost the worker of rank 1")
    attempt.end(2, requeued=True)  # of the first worker, which was about to end as well
    ends = [row for row in rows_of(attempts_path(attempt.folder, 0)) if row["event"] == "ended"]
    assert len(ends) == 1
    sight = sight_of(attempt.folder, 0, ends[0]["time"] + 5.0)
    assert (sight.state, sight.num_attempts, sight.wait_s) == ("pending", 1, 2.0 + 5.0), "it waits again"
    attempt.end(2, reason="Ray starts ranks no more often")
    attempt.end(2, reason="again")
    sight = sight_of(attempt.folder, 0, time.time())
    assert (sight.state, sight.reason) == ("failed", "Ray starts ranks no more often")


def test_what_ray_says_of_its_queue_changes_no_state(tmp_path):
    attempt = attempt_in(tmp_path)
    note(attempt.folder, 0, "submitted")
    note(attempt.folder, 0, QUEUED, reason="waits for the cluster")
    sight = sight_of(attempt.folder, 0, time.time())
    assert (sight.state, sight.reason) == ("pending", "waits for the cluster")
    attempt.begin(1.0)
    note(attempt.folder, 0, GRANTED)  # by another process, a moment late
    assert sight_of(attempt.folder, 0, time.time()).state == "running"
    attempt.end(0)
    assert sight_of(attempt.folder, 0, time.time()).state == "finished"


def test_what_the_cluster_does_not_have_is_the_reason_of_the_wait():
    scaling = plan(request_of(engine="ray"))["scaling_config"]
    assert missing_in(scaling, {"CPU": 2.0, "GPU": 2.0}) == ""
    assert "2 GPU (it has 1)" in missing_in(scaling, {"CPU": 2.0, "GPU": 1.0})


def test_a_runner_of_another_machine_is_not_taken_for_gone(tmp_path):
    attempt = attempt_in(tmp_path)
    number = f"{os.getpid()}.0.0"  # began at another time: not the process it was
    note(attempt.folder, 0, "submitted", node="elsewhere")
    assert runner.look({number: attempt.folder})[number].state == "pending"
    note(attempt.folder, 0, "submitted", node=os.uname().nodename)
    assert runner.look({number: attempt.folder})[number].state == "cancelled"
