"""What a short look tells of a program before it is timed."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "verify"))
from rows import events, row
from tiny import Kept, Tiny

from samestep.experiment import Experiment
from samestep.observed import Layer, Machine, Model, Statistic, Step
from samestep.scale.looks import Look, look_of


def look(tmp_path, size=2, *, status="cut", **settings):
    tiny = Tiny(out=tmp_path, **settings)
    return look_of(Kept(tiny._rows(size, Experiment())), size, status=status)


def test_a_right_program(tmp_path):
    seen = look(tmp_path)
    assert seen.is_good and seen.num_steps == seen.num_seen == 6
    assert seen.rank_examples == (4.0, 4.0) and seen.batch_size == 8
    assert seen.loaders == ("train.py:10",)  # and not the one that is evaluated
    assert seen.repeats == 1.0 and seen.num_synchronised_norms == 0 and seen.batches_per_step == 1.0


def test_several_batches_for_one_step(tmp_path):
    seen = look(tmp_path, turns=lambda size: 2)
    assert seen.batch_size == 8 and seen.batches_per_step == 2.0


def test_ranks_that_have_the_same_examples(tmp_path):
    assert look(tmp_path, share=lambda batch, size: [batch] * size).repeats == 2.0


@pytest.mark.parametrize(
    ("kind", "collectives", "count"),
    [("SyncBatchNorm", 0, 1), ("BatchNorm1d", 0, 0), ("BatchNorm1d", 2, 1)],
)
def test_norms_are_synchronised_by_their_class_or_by_what_they_do(tmp_path, kind, collectives, count):
    def edit(found, rank, size):
        if isinstance(found, Model):
            norms = (row(Layer, kind=kind),)
            return [replace(found, norms=norms), row(Statistic, kind=kind, num_collectives=collectives)]
        return found

    assert look(tmp_path, edit=edit).num_synchronised_norms == count


def test_a_clock_that_is_read_without_waiting(tmp_path):
    def edit(found, rank, size):
        if isinstance(found, Machine):
            return replace(found, device="cuda:0")
        if isinstance(found, Step):
            names = ("clock-read",) if found.step < 5 else ("synchronize", "clock-read")
            return replace(found, events=(*found.events, *events(*names)))
        return found

    assert look(tmp_path, edit=edit).num_clock_steps == 4


def test_a_look_is_the_same_from_its_file(tmp_path):
    seen = look(tmp_path)
    seen.write(tmp_path / "look.json")
    assert Look.read(tmp_path / "look.json") == seen
    (tmp_path / "look.json").write_text('{"world_size": "many"}')
    assert Look.read(tmp_path / "look.json") is None
    assert Look.read(tmp_path / "nothing.json") is None
