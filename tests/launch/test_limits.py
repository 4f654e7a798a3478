import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep import world
from samestep.errors import ConfigError
from samestep.launch.job import Job
from samestep.launch.limits import DEFAULT_SHARDS, Limits, Resumed


@given(st.integers(1, 99), st.integers(0, 99))
def test_limits_are_what_they_are_written_as(least, more):
    limits = Limits.parse(f"{least}:{least + more}")
    assert (limits.least, limits.most) == (least, least + more)
    assert Limits.parse(str(limits)) == limits
    assert Limits.parse(str(least)) == Limits(most=least)
    assert Limits(most=least).most_rounds == 1  # a plain number of ranks is never started again


@pytest.mark.parametrize("text", ["", ":", "2:", ":2", "0", "0:3", "3:2", "-1", "1:2:3", "two"])
def test_anything_else_is_no_limits(text):
    with pytest.raises(ValueError, match=r"MIN:MAX|at least 1"):
        Limits.parse(text)


def test_the_default_is_that_of_worlds():
    assert DEFAULT_SHARDS == world.DEFAULT_SHARDS


def test_every_rank_needs_a_shard():
    Limits.parse("2:8").check_shards(8)
    Limits.parse("9").check_shards(None)
    with pytest.raises(ConfigError, match="--gpus 2:9 was asked for with --shards 8"):
        Limits.parse("2:9").check_shards(8)


def test_what_a_run_was_told_is_known_when_it_is_resumed(tmp_path):
    assert Resumed.of(None) == Resumed.of(tmp_path) == Resumed()
    job = Job(command="train", overrides=("lr=1", "x=2"), mode="bitwise", shards=4, allow_drift=True)
    job.write(tmp_path)
    (tmp_path / "record.json").write_text('{"threads": 2}')
    (tmp_path / "result.json").write_text('{"status": "finished", "steps": 7}')
    resumed = Resumed.of(tmp_path)
    assert (resumed.mode, resumed.shards, resumed.allow_drift, resumed.threads) == ("bitwise", 4, True, 2)
    assert resumed.is_finished and resumed.num_steps == 7
    assert resumed.with_overrides(["x=3", "y=1"]) == ("lr=1", "x=3", "y=1")
    assert resumed.changed_by(["lr=1", "x=3", "y=1", "epochs=9"]) == ("x=3", "y=1")
    assert Resumed().changed_by(["x=3"]) == ()
