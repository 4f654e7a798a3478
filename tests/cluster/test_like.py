"""Time limits and threads from what was run before: a run, or the advice on a sweep."""

import json

import pytest
from test_submit_command import DIGITS, samestep

from samestep.cluster.like import threads_like, times_like
from samestep.errors import ConfigError
from samestep.record import RecordWriter, write_json


def run_of(folder, *, num_timed=11, result=None, **about):
    """A run of 1,000 steps of which so many were made, or that ended with a result."""
    folder.mkdir()
    writer = RecordWriter(folder, 0)
    writer.describe(num_steps=1000, threads=3, **about)
    for step in range(1, num_timed + 1):
        writer.step(step, step_s=100.0 if step == 1 else 2.0)
    if result is not None:
        writer.finish(result)
    writer.close()
    return folder


def test_a_run_tells_by_its_median_step(tmp_path):
    with pytest.raises(ConfigError, match="0 timed steps"):
        times_like(run_of(tmp_path / "none", num_timed=0), [1])
    # 3 minutes to start and 1.5 times 1,000 median steps of 2 s; the slow first one decides nothing
    run = run_of(tmp_path / "run")
    assert times_like(run, [1, 8]) == dict.fromkeys([1, 8], 180 + 3000)
    assert threads_like(run) == 3


def test_what_is_around_the_steps_of_a_whole_run_counts(tmp_path):
    whole = {"status": "finished", "seconds": 4000.0, "steps": 1000}
    assert times_like(run_of(tmp_path / "whole", result=whole), [1]) == {1: 180 + 6000}
    # what is not whole tells no more than its steps
    part = run_of(tmp_path / "part", result=whole | {"status": "stopped"})
    resumed = run_of(tmp_path / "resumed", result=whole, resumed_at_step=500)
    assert times_like(part, [1]) == times_like(resumed, [1]) == {1: 180 + 3000}


def sweep_in(folder):
    """A sweep on 1 and 2 GPUs as far as advice needs it: a step of 4 s, and of 2.5 s on two."""
    cells = [
        {"gpus": n, "batch_size": 8, "batch_per_gpu": 8 / n, "status": "measured", "step_s": s,
         "step_low_s": 0.9 * s, "step_high_s": 1.1 * s}
        for n, s in ((1, 4.0), (2, 2.5))
    ]  # fmt: skip
    folder.mkdir()
    write_json(folder / "scale.json", {"version": 1, "threads_per_rank": 5, "cells": cells})
    return folder


def test_the_advice_on_a_sweep_tells_a_limit_for_each_number_of_ranks(tmp_path):
    sweep = sweep_in(tmp_path / "sweep")
    assert threads_like(sweep) == 5
    with pytest.raises(ConfigError, match=r"samestep advise .* first"):
        times_like(sweep, [1])
    samestep("advise", sweep, "--steps", 1000, "--to", 4, cwd=tmp_path)
    rows = {row["gpus"]: row for row in json.loads((sweep / "advice.json").read_text())["rows"]}
    found = times_like(sweep, [1, 2, 4])
    assert rows[1]["kind"] == "measured" and rows[4]["kind"] == "projected"
    for world, limit in found.items():
        assert 0 <= limit - 180 - rows[world]["train_high_s"] < 60
    assert found[2] < found[1], "a shorter job is scheduled sooner"
    with pytest.raises(ConfigError, match=r"knows 1, 2, 3, 4: .* --to 64"):
        times_like(sweep, [64])
    done = samestep("submit", DIGITS, "--gpus", "1,2", "--like", sweep, "--dry-run", "--json", "--out", "o",
                    cwd=tmp_path)  # fmt: skip
    scripts = [text for path, text in json.loads(done.stdout)["files"].items() if path.endswith("job.sh")]
    assert all("--cpus-per-task=" + n in text for n, text in zip(("5", "10"), scripts, strict=True))
    assert len({line for text in scripts for line in text.splitlines() if "--time=" in line}) == 2
