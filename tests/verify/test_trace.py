"""Which batch went into which step, and what a step on all ranks is made of."""

import math
from dataclasses import replace

import numpy as np
import pytest
from edits import change
from hypothesis import given
from hypothesis import strategies as st
from rows import RANDOM, events, read, row, summary, trace
from tiny import Tiny

from samestep.experiment import pass_key
from samestep.observed import (
    Batch,
    Call,
    End,
    Loader,
    Loss,
    Machine,
    Model,
    Pass,
    PassEnd,
    RandomState,
    Replica,
    Spawn,
    Statistic,
    Step,
    Trouble,
    Worker,
)
from samestep.verify.replay import replayed_batches
from samestep.verify.trace import Merged, RankStep, Taken

LOSS_FUNCTION = row(Model, model=1, kind="MSELoss", tensors=())


def batch(step, *indices, loader=0, number=1, **more):
    return row(
        Batch, step=step, loader=loader, number=number, indices=indices, num_examples=len(indices), **more
    )


def call(step, **more):
    return row(Call, step=step, **more)


def step(number, **more):
    return row(Step, step=number, **more)


def trained(number, *indices, **more):
    """The rows of a step on one batch."""
    return [batch(number, *indices, **more), call(number), row(Loss, step=number), step(number)]


def batches_of(traced, rank=0):
    return {
        number: [b.indices for b in step.batches]
        for number, step in traced.ranks[rank].steps.items()
        if step.batches
    }


class TestBatchesOfSteps:
    def test_each_goes_to_the_step_that_trained_on_it(self, tmp_path):
        rows = [row(Model), *trained(1, 0, 1), *trained(2, 2, 3)]
        assert batches_of(trace(tmp_path, rows)) == {1: [(0, 1)], 2: [(2, 3)]}

    def test_a_loss_function_is_no_model_that_trains(self, tmp_path):
        rows = [row(Model), LOSS_FUNCTION, *trained(1, 0), call(1, model=1)]
        traced = trace(tmp_path, rows)
        assert traced.first.trained_models == {0}
        assert (traced.first.is_trained(0), traced.first.is_trained(1)) == (True, False)

    def test_nor_one_that_is_evaluated(self, tmp_path):
        evaluation = [batch(2, 7, loader=1), call(2, is_training=False, has_gradients=False)]
        of_loss = [batch(2, 8, loader=2), call(2, model=1, is_training=False, has_gradients=False)]
        rows = [row(Model), LOSS_FUNCTION, *trained(1, 0), *evaluation, *of_loss]
        rank = trace(tmp_path, rows).first
        assert (rank.training_loaders, rank.evaluation_loaders) == ({0}, {1})


class TestSteps:
    def test_those_in_full_are_counted_up_to_the_first_that_is_not(self, tmp_path):
        rows = [step(1), step(2), step(3, is_full=False), step(4), step(50, is_full=False)]
        traced = trace(tmp_path, rows)
        assert (traced.first.num_full, traced.first.num_steps) == (2, 50)

    def test_all_ranks_have_those_that_each_has(self, tmp_path):
        traced = trace(tmp_path, [step(1), step(2)], [step(1)], [step(1), step(2)])
        assert traced.num_full == 1
        assert traced.step(2)[1] == RankStep()

    def test_a_rank_that_left_nothing_has_none(self, tmp_path):
        traced = trace(tmp_path, [step(1)], [])
        assert traced.num_full == 0
        assert traced.ranks[1].num_steps == 0
        assert traced.ranks[1].end is None

    def test_what_happened_after_the_last_one_is_known_from_the_end(self, tmp_path):
        rows = [
            step(1, events=events("forward", "update")),
            row(End, events_after=events("evaluation"), num_steps=1),
        ]
        rank = trace(tmp_path, rows).first
        assert [event.name for event in rank.events(1)] == ["forward", "update"]
        assert [event.name for event in rank.events(2)] == ["evaluation"]
        assert trace(tmp_path / "cut", rows[:1]).first.events(2) == ()

    def test_rows_of_the_whole_run_are_kept(self, tmp_path):
        rows = [
            row(Machine), row(Spawn, num_processes=3), row(Spawn), row(Worker), row(Statistic),
            row(Replica, step=30), Trouble(step=1, place="a loader", error=""), row(Loss),
        ]  # fmt: skip
        rank = trace(tmp_path, rows).first
        assert rank.machine is not None
        assert rank.num_spawned == 5
        assert (len(rank.workers), len(rank.statistics)) == (1, 1)
        assert rank.steps[30].replicas == {0: "p"}


class TestExamples:
    def test_they_are_those_of_all_ranks(self, tmp_path):
        traced = trace(tmp_path, [row(Model), *trained(1, 0, 1)], [row(Model), *trained(1, 1, 2)])
        assert traced.examples(1) == {(0, 0): 1, (0, 1): 2, (0, 2): 1}
        assert traced.examples_by_rank(1) == {0: {(0, 0): 1, (0, 1): 1}, 1: {(0, 1): 1, (0, 2): 1}}
        assert traced.taken(1) == [[Taken(0, 1, (0, 1))], [Taken(0, 1, (1, 2))]]
        assert traced.num_examples_by_rank(1) == {0: 2, 1: 2}
        assert traced.num_examples(1) == 4

    def test_of_what_a_rank_loads_its_model_may_be_given_a_part(self, tmp_path):
        """As where every rank loads the global batch, and takes its share of it."""
        names = ("a", "b", "c", "d")
        ranks = [
            [
                row(Model),
                batch(1, 0, 1, 2, 3, examples=names),
                call(1, rows=names[2 * rank : 2 * rank + 2]),
                row(Loss),
                step(1),
            ]
            for rank in (0, 1)
        ]
        traced = trace(tmp_path, *ranks)
        assert traced.examples_by_rank(1) == {0: {(0, 0): 1, (0, 1): 1}, 1: {(0, 2): 1, (0, 3): 1}}
        assert traced.taken(1) == [[Taken(0, 1, (0, 1))], [Taken(0, 1, (2, 3))]]

    def test_or_fewer_than_were_drawn(self, tmp_path):
        """As where collating keeps a rank's share: then prints of what is left are not those of indices."""
        names = ("a", "b", "c", "d")
        whole = [row(Loader), batch(1, 0, 1, 2, 3, examples=names), call(1, rows=names), row(Loss), step(1)]
        one = trace(tmp_path / "one", [row(Model), *whole])
        ranks = [
            [row(Model), row(Loader), batch(1, 0, 1, 2, 3), call(1, rows=part), row(Loss), step(1)]
            for part in (names[:2], names[2:])
        ]
        two = trace(tmp_path / "two", *ranks, reference=one)
        assert two.examples_by_rank(1) == {0: {(0, 0): 1, (0, 1): 1}, 1: {(0, 2): 1, (0, 3): 1}}
        assert two.examples(1) == one.examples(1)

    def test_rows_that_are_not_those_of_the_batch_say_nothing(self, tmp_path):
        """As where a loop changes what it gives to the model."""
        rows = [batch(1, 0, 1, examples=("a", "b")), call(1, rows=("x",)), row(Loss), step(1)]
        assert trace(tmp_path, [row(Model), *rows]).examples(1) == {(0, 0): 1, (0, 1): 1}

    def test_without_a_loader_they_are_the_rows_that_models_are_given(self, tmp_path):
        traced = trace(tmp_path, [row(Model), call(1, rows=("a", "b")), row(Loss), step(1)])
        assert traced.examples(1) == {"a": 1, "b": 1}
        assert traced.input_rows(1) == {"a": 1, "b": 1}
        assert traced.num_examples(1) == 2
        assert traced.taken(1) == [[]]

    def test_where_indices_are_not_known_they_are_prints(self, tmp_path):
        unknown = row(Batch, indices=None, num_examples=2, examples=("a", "b"))
        traced = trace(tmp_path, [row(Model), unknown, call(1), row(Loss), step(1)])
        assert traced.examples(1) == {"a": 1, "b": 1}
        assert traced.taken(1) is None

    def test_where_nothing_tells_nobody_knows(self, tmp_path):
        unknown = row(Batch, indices=None, num_examples=None)
        traced = trace(tmp_path, [row(Model), unknown, call(1), row(Loss), step(1)])
        for number in (1, 2):
            assert traced.examples(number) is None
            assert traced.num_examples(number) is None
        counted = row(Batch, indices=None, num_examples=3)
        assert trace(tmp_path / "b", [row(Model), counted, row(Loss), step(1)]).num_examples(1) == 3

    def test_a_second_update_on_a_batch_has_none_of_its_own(self, tmp_path):
        rows = [row(Model), *trained(1, 0), call(2, rows=("a",)), row(Loss, step=2), step(2), *trained(3, 1)]
        traced = trace(tmp_path, rows)
        assert batches_of(traced) == {1: [(0,)], 3: [(1,)]}
        assert traced.examples(2) is None

    def test_a_rank_that_nobody_can_tell_of_spoils_it(self, tmp_path):
        known = [row(Model), *trained(1, 0)]
        assert trace(tmp_path, known, [row(Model), call(1), row(Loss), step(1)]).examples(1) is None


class TestDrawsInLoop:
    @staticmethod
    def rank(tmp_path, *rows):
        states = [row(RandomState, step=n, random=replace(RANDOM, torch=f"{n}")) for n in (1, 2, 3)]
        return trace(tmp_path, [row(Model), *states, *(step(n) for n in (1, 2, 3)), *rows]).first

    def test_generators_that_moved(self, tmp_path):
        rank = self.rank(tmp_path)
        assert rank.draws_in_loop(1) == rank.draws_in_loop(2) == {"torch"}

    def test_the_last_step_is_as_the_one_before(self, tmp_path):
        assert self.rank(tmp_path).draws_in_loop(3) == {"torch"}
        assert trace(tmp_path / "none", [step(1)]).first.draws_in_loop(1) == set()

    def test_those_that_a_model_or_a_loader_moved_are_not_the_loops(self, tmp_path):
        assert self.rank(tmp_path / "a", call(2, moved=("torch",))).draws_in_loop(1) == set()
        assert self.rank(tmp_path / "b", batch(2, 0, moved=("torch",))).draws_in_loop(1) == set()
        assert self.rank(tmp_path / "c", row(Pass, step=2)).draws_in_loop(1) == set()
        assert self.rank(tmp_path / "d", batch(2, 0, moved=("numpy",))).draws_in_loop(1) == {"torch"}


class TestTranslation:
    """Ranks that have a part of the data set each, and count from 0."""

    @staticmethod
    def rows(length, indices, prints):
        told = row(Batch, indices=indices, num_examples=len(prints), examples=prints)
        end = row(PassEnd, num_examples=len(prints), multiset=9)
        return [row(Model), row(Loader, num_examples=length), told, call(1), row(Loss), step(1), end]

    def test_indices_become_those_of_the_reference(self, tmp_path):
        one = trace(tmp_path / "one", self.rows(4, (0, 1, 2, 3), ("a", "b", "c", "d")))
        parts = [self.rows(2, (0, 1), ("a", "b")), self.rows(2, (0, 1), ("c", "d"))]
        assert trace(tmp_path / "two", *parts).examples(1) != one.examples(1)
        two = trace(tmp_path / "again", *parts, reference=one)
        assert two.examples(1) == one.examples(1)
        assert [i for (part,) in two.taken(1) for i in part.indices] == [0, 1, 2, 3]
        assert two.first.pass_ends[0].multiset is None

    def test_an_example_is_known_by_its_print(self, tmp_path):
        one = trace(tmp_path / "one", self.rows(2, (0, 1), ("a", "b")))
        same = trace(tmp_path / "two", self.rows(2, (0, 1), ("a", "b")), reference=one)
        assert same.taken(1) == [[Taken(0, 1, (0, 1))]]
        assert same.first.pass_ends[0].multiset == 9
        turned = trace(tmp_path / "three", self.rows(2, (0, 1), ("b", "a")), reference=one)
        assert turned.taken(1) == [[Taken(0, 1, (1, 0))]]

    def test_one_of_a_data_set_of_the_same_length_keeps_its_index_where_it_looks_otherwise(self, tmp_path):
        """As examples do that are changed at random."""
        one = trace(tmp_path / "one", self.rows(2, (0, 1), ("a", "b")))
        other = trace(tmp_path / "two", self.rows(2, (1, 0), ("x", "y")), reference=one)
        assert other.taken(1) == [[Taken(0, 1, (1, 0))]]

    def test_an_example_that_the_reference_has_not_seen_has_none(self, tmp_path):
        one = trace(tmp_path / "one", self.rows(4, (0, 1), ("a", "b")))
        other = trace(tmp_path / "two", self.rows(2, (0, 1), ("a", "z")), reference=one)
        assert other.first.batches[0].indices is None
        assert other.taken(1) is None
        bare = trace(tmp_path / "three", self.rows(2, (0, 1), ()), reference=one)
        assert bare.first.batches[0].indices is None


class TestReplayedBatches:
    def test_a_batch_is_that_of_all_ranks_one_after_the_other(self, tmp_path):
        tiny = Tiny(out=tmp_path, num_passes=2)
        reference, candidate = tiny.trace(1), tiny.trace(2)
        given = replayed_batches(candidate, reference)
        assert set(given) == {pass_key(0, 1), pass_key(0, 2)}
        for number in (1, 2):
            assert [i for many in given[pass_key(0, number)] for i in many] == tiny.order(number, 24, 1)
        assert [len(many) for many in given[pass_key(0, 1)]] == [8, 8, 8]

    def test_turned_they_have_the_same_examples(self, tmp_path):
        tiny = Tiny(out=tmp_path)
        reference, candidate = tiny.trace(1), tiny.trace(2)
        given = replayed_batches(candidate, reference)
        turned = replayed_batches(candidate, reference, order=1)
        assert turned == {key: tuple(many[::-1] for many in batches) for key, batches in given.items()}
        assert turned != given
        orders = [
            replayed_batches(candidate, reference, order=order)[pass_key(0, 1)][0] for order in range(5)
        ]
        assert len(set(orders)) == 5 and len({tuple(sorted(order)) for order in orders}) == 1

    @pytest.mark.parametrize("size", [2, 4])
    def test_a_step_is_cut_into_as_many_as_one_rank_takes(self, tmp_path, size):
        tiny = Tiny(out=tmp_path, turns=lambda size: 4 // size, num_passes=1)
        reference, candidate = tiny.trace(1), tiny.trace(size)
        assert len(reference.first.steps[1].batches) == 4
        given = replayed_batches(candidate, reference)[pass_key(0, 1)]
        assert [len(many) for many in given] == [2] * 12
        assert sorted(i for many in given for i in many) == list(range(24))
        assert sorted(i for many in given[:4] for i in many) == sorted(tiny.order(1, 24, 1)[:8])

    def test_turns_stay_turns(self, tmp_path):
        """Batch j of a step is batch j of each rank, as in a program that averages by turns."""
        tiny = Tiny(out=tmp_path, turns=lambda size: 2, num_passes=1)
        reference, candidate = tiny.trace(1), tiny.trace(2)
        given = replayed_batches(candidate, reference)[pass_key(0, 1)]
        turns = [[step.batches[j].indices for step in candidate.step(1).values()] for j in (0, 1)]
        assert list(given[:2]) == [a + b for a, b in turns]

    def test_where_the_reference_went_less_far_a_step_is_as_the_candidate_takes_it(self, tmp_path):
        tiny = Tiny(out=tmp_path, num_passes=1)
        candidate = tiny.trace(2)
        short = Tiny(out=tmp_path, num_passes=0).trace(1)
        assert len(replayed_batches(candidate, short)[pass_key(0, 1)]) == 3

    def test_there_are_none_where_indices_are_not_known(self, tmp_path):
        tiny = Tiny(out=tmp_path)
        reference = tiny.trace(1)
        tiny.edit = change(Batch, {"indices": None, "examples": ()}, rank=1)
        assert replayed_batches(tiny.trace(2, reference=reference), reference) == {}

    def test_nor_where_no_step_was_taken(self, tmp_path):
        empty = trace(tmp_path, [row(Model)], [row(Model)])
        assert replayed_batches(empty, empty) == {}


PARTS = st.lists(
    st.lists(st.floats(-1e6, 1e6, width=32), max_size=6).map(lambda part: np.asarray(part, np.float32)),
    min_size=1, max_size=4,
)  # fmt: skip


class TestMerged:
    @given(PARTS)
    def test_parts_have_the_summary_of_the_whole(self, parts):
        merged = Merged.of(summary(part) for part in parts)
        whole = summary(np.concatenate(parts))
        assert merged.num_elements == math.prod(whole.shape)
        # numbers of up to 1e6 in float64, a few of them
        assert merged.mean == pytest.approx(whole.mean, rel=1e-12, abs=1e-9)
        assert merged.rms == pytest.approx(whole.rms, rel=1e-9, abs=1e-12)
        assert merged.max_abs == whole.max_abs

    def test_a_part_of_another_size_changes_it(self):
        some, others = np.float32([1.0, 2.0]), np.float32([4.0])
        right = Merged.of([summary(some), summary(others)])
        assert right.mean == pytest.approx(7 / 3)
        assert right.mean != (summary(some).mean + summary(others).mean) / 2

    def test_nothing_is_zero(self):
        assert Merged.of([]) == Merged(0, 0.0, 0.0, 0.0, "")
        assert Merged.of([summary(np.zeros((0, 3), np.float32))]) == Merged(0, 0.0, 0.0, 0.0, "float32")

    @pytest.mark.parametrize("turned", [False, True])
    def test_what_is_not_a_number_stays(self, turned):
        parts = [summary(np.float32([math.nan])), summary(np.float32([1.0]))]
        merged = Merged.of(parts[::-1] if turned else parts)
        assert math.isnan(merged.mean)
        assert math.isnan(merged.rms)
        assert math.isnan(merged.max_abs)

    def test_outputs_of_ranks_are_merged_by_module(self, tmp_path):
        parts = [np.float32([[1.0]]), np.float32([[3.0], [5.0]])]
        ranks = [[row(Model), call(1, name="fc", outputs=(summary(part),)), step(1)] for part in parts]
        merged = trace(tmp_path, *ranks).merged_calls(1)
        assert merged == {(0, "fc", 0): Merged.of([summary(np.concatenate(parts))])}


def test_a_run_is_read_as_it_was_written(tmp_path):
    tiny = Tiny(out=tmp_path, norm="local", metric="first", clip="before")
    written, kept = read(tiny("two", 2).folder), tiny.trace(2)
    assert (written.world_size, written.num_full) == (2, 6)
    for rank, trace_of_rank in written.ranks.items():
        assert trace_of_rank.steps == kept.ranks[rank].steps
        assert trace_of_rank.models == kept.ranks[rank].models
