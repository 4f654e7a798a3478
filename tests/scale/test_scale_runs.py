"""Lines that a sweep goes on from."""

import pytest
from synthetic import Job

from samestep.errors import ConfigError
from samestep.scale.plan import Sweep
from samestep.scale.runs import TEXT, check_same, has_norms, line_of, read_lines, read_runs
from samestep.scale.variants import Variant

SWEEP = Sweep(worlds=(1, 2), batches=(8,))
JOB = Job(failing=("silent-2x8",), facts={"phases_s": {"data": 0.1}}, host={"other_cores": 0.5})


def test_a_run_comes_back_as_it_was(tmp_path):
    runs = JOB.runs(SWEEP, rounds=2)
    path = tmp_path / "cells.jsonl"
    path.write_text("".join(map(line_of, runs)))
    assert read_runs(path) == runs


def test_where_there_is_no_file_there_are_no_runs(tmp_path):
    assert read_runs(tmp_path / "cells.jsonl") == []


def test_lines_that_are_cut_off_or_foreign_are_passed_over():
    run = JOB.runs(SWEEP, rounds=1)[0]
    line = line_of(run).encode()
    assert list(read_lines([b"{}\n", b"nonsense\n", line, line[:-1], line[:50] + b"\n"])) == [run]


def test_of_a_run_that_was_made_twice_the_last_counts():
    variant = Variant(gpus=1, batch_size=8, kind="full")
    first, second = (Job(seed=seed).run(variant, 1) for seed in (1, 2))
    lines = [line_of(run).encode() for run in (first, second)]
    assert list(read_lines(lines)) == [second] != [first]


def test_only_what_has_times_is_measured():
    runs = JOB.runs(SWEEP, rounds=1)
    assert {run.variant.name for run in runs if not run.is_measured} == {"silent-2x8"}
    assert all(run.num_kept for run in runs if run.is_measured)


def test_other_settings_are_refused_by_name(tmp_path):
    kept = SWEEP.settings() | {"program": ["train.py"]}
    check_same(dict(kept), kept, tmp_path)
    asked = Sweep(worlds=(1, 4), batches=(8,)).settings() | {"program": ["other.py"]}
    with pytest.raises(ConfigError) as refused:
        check_same(asked, kept, tmp_path)
    assert "program is train.py there and now other.py" in str(refused.value)
    assert "worlds is 1,2 there and now 1,4" in str(refused.value)
    assert "--out" in str(refused.value)


def test_settings_are_told_as_they_are_typed(tmp_path):
    kept = {"--batch": None, TEXT: "830d2f7d"}
    with pytest.raises(ConfigError) as refused:
        check_same({"--batch": [32, 64], TEXT: "4ce50ed3"}, kept, tmp_path)
    assert (
        "--batch is not given there and now 32,64; the text of the program has changed" in f"{refused.value}"
    )


def test_norms_that_are_synchronised_are_seen_on_several_ranks():
    norms = {"num_synchronised_norms": 3}
    assert has_norms(Job(facts={2: norms}).runs(SWEEP, rounds=1))
    assert not has_norms(Job(facts={1: norms}).runs(SWEEP, rounds=1))
    assert not has_norms(Job(failing=("full-2x8",), facts={2: norms}).runs(SWEEP, rounds=1))
