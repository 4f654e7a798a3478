import json
from datetime import datetime

import pytest

from samestep.errors import LaunchError
from samestep.launch.folder import default_folder, prepared
from samestep.record import rank_folder

NOW = datetime(2026, 1, 2, 3, 4, 5)


def run_in(folder, status="finished", steps=1):
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    if status:
        (folder / "result.json").write_text(json.dumps({"status": status}))
    if steps:
        (folder / "steps.jsonl").write_text('{"step": 1}\n' * steps)
    return folder


def test_default_folders_have_the_targets_name_and_never_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = default_folder("my nets/train.py:small", NOW)
    assert str(first) == "runs/small-20260102-030405"
    assert str(default_folder("a/config.yaml", NOW)) == "runs/config-20260102-030405"
    assert default_folder("..", NOW).parent.name == "runs"
    first.mkdir(parents=True)
    assert str(default_folder("small.py", NOW)) == "runs/small-20260102-030405-2"


@pytest.mark.parametrize("status", ["finished", "stopped", None])
def test_a_run_is_never_overwritten(tmp_path, status):
    folder = run_in(tmp_path / "run", status)
    before = sorted(folder.iterdir())
    with pytest.raises(LaunchError, match=r"holds a run already .*--resume"), prepared(folder, resume=False):
        pass
    assert sorted(folder.iterdir()) == before


def test_a_run_that_failed_before_its_first_step_can_be_tried_again(tmp_path):
    with prepared(run_in(tmp_path / "run", "failed", steps=0), resume=False) as folder:
        assert not (folder / "result.json").exists()


def test_resuming_keeps_the_record_and_clears_what_belongs_to_one_attempt(tmp_path):
    folder = run_in(tmp_path / "run")
    own = rank_folder(folder, 0)
    own.mkdir(parents=True)
    for name in ("pid", "done", "error.json", "stdout.log"):
        (own / name).write_text("x")
    with prepared(folder, resume=True):
        assert (folder / "steps.jsonl").exists() and not (folder / "result.json").exists()
        assert [path.name for path in own.iterdir()] == ["stdout.log"]


def test_nothing_to_resume(tmp_path):
    with pytest.raises(LaunchError, match="holds no run"), prepared(tmp_path, resume=True):
        pass


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(LaunchError, match="not empty"), prepared(tmp_path, resume=False):
        pass
    with pytest.raises(LaunchError, match="is a file"), prepared(tmp_path / "thesis.tex", resume=False):
        pass
    with (
        pytest.raises(LaunchError, match="cannot be written"),
        prepared(tmp_path / "thesis.tex" / "x", resume=False),
    ):
        pass


def test_two_runs_do_not_share_a_folder_at_a_time(tmp_path):
    with (
        prepared(tmp_path / "run", resume=False) as folder,
        pytest.raises(LaunchError, match="still going on"),
        prepared(folder, resume=False),
    ):
        pass
    with prepared(tmp_path / "run", resume=False):
        pass
