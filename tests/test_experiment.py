import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.errors import RecordError
from samestep.experiment import Experiment, pass_key

BATCHES = st.dictionaries(
    st.builds(pass_key, st.integers(0, 9), st.integers(1, 9)),
    st.lists(st.lists(st.integers(0, 2**40), max_size=4).map(tuple), max_size=4).map(tuple),
)


@given(st.none() | st.integers(0, 2**31), st.booleans(), st.booleans(), st.booleans(), BATCHES)
def test_an_experiment_is_read_as_it_was_written(tmp_path_factory, seed, dropout, norms, examples, batches):
    path = tmp_path_factory.mktemp("e") / "experiment.json"
    made = Experiment(
        seed=seed, is_dropout_off=dropout, are_norms_frozen=norms, are_examples_seeded=examples,
        batches=batches, lengths={"train.py:3": 5}, is_exchange_off=dropout, is_data_cached=norms,
        are_norms_local=examples, batch_size=seed, loaders=("train.py:3", "b.py:1"),
    )  # fmt: skip
    made.write(path)
    assert Experiment.read(path) == made


def test_only_one_that_changes_something_is_any():
    assert not Experiment().is_any
    for change in (
        {"seed": 0}, {"is_dropout_off": True}, {"are_norms_frozen": True}, {"are_examples_seeded": True},
        {"batches": {pass_key(0, 1): ((1,),)}}, {"lengths": {"train.py:3": 1}}, {"is_exchange_off": True},
        {"is_data_cached": True}, {"are_norms_local": True}, {"batch_size": 1}, {"loaders": ("train.py:3",)},
    ):  # fmt: skip
        assert dataclasses.replace(Experiment(), **change).is_any


def test_batches_that_are_meant_for_one_rank():
    shared, own = {pass_key(0, 1): ((1, 2),), pass_key(1, 1): ((3,),)}, {pass_key(0, 1, 1): ((4, 5),)}
    made = Experiment(batches=shared | own, seed=3)
    assert made.on_rank(0) == made.on_rank(11) == Experiment(batches=shared, seed=3)
    assert made.on_rank(1).batches == {pass_key(0, 1): ((4, 5),), pass_key(1, 1): ((3,),)}


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_shares_of_a_batch_add_up_and_differ_by_one_at_most(batch_size, world_size):
    shares = [Experiment(batch_size=batch_size).on_rank(r, world_size).batch_size for r in range(world_size)]
    assert sum(shares) == batch_size
    assert max(shares) - min(shares) <= 1


def test_loaders_that_it_is_meant_for():
    assert Experiment().is_meant("a.py:1")
    made = Experiment(loaders=("a.py:1",))
    assert made.is_meant("a.py:1")
    assert not made.is_meant("a.py:2")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"batches": 3}', '{"batches": {}, "loud": true}'])
def test_what_is_no_experiment_is_refused(tmp_path, text):
    path = tmp_path / "e.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"e\.json was to be read as an experiment"):
        Experiment.read(path)
    with pytest.raises(RecordError, match="was to be read as an experiment"):
        Experiment.read(tmp_path / "none.json")


def test_it_is_read_without_torch_or_numpy():
    code = "import sys, samestep.experiment; sys.exit({'torch', 'numpy'} & {*sys.modules} != set())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
