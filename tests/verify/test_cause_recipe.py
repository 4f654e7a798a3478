"""Batch sizes, learning rates and schedules that depend on the number of ranks."""

from dataclasses import replace

import pytest
from edits import all_of, change
from judging import found, told
from sharing import contiguous
from tiny import Tiny

from samestep.observed import Batch, Call, Loader, Optimizer, OptimizerGroup, Step
from samestep.verify.causes.recipe import batch_grows, rate_depends_on_world, schedule_per_rank


class TestBatchGrows:
    def test_a_batch_size_that_is_meant_for_a_rank(self, tmp_path):
        finding = told(batch_grows, Tiny(out=tmp_path, batch_size=lambda size: 4 * size).evidence())
        assert finding.cause == "batch-grows-with-world"
        assert "Step 1 trains on 8 examples on 2 ranks and on 4 on one" in finding.message
        assert "2 times fewer updates" in finding.message
        assert finding.evidence == {
            "examples": 8, "reference_examples": 4, "step": 1, "where": "train.py:10",
        }  # fmt: skip
        assert "train.py:10" in finding.fix

    def test_without_a_loader_it_is_seen_at_the_models_inputs(self, tmp_path):
        edit = change((Loader, Batch), lambda row: None)
        finding = told(
            batch_grows, Tiny(out=tmp_path, batch_size=lambda size: 4 * size, edit=edit).evidence()
        )
        assert finding.evidence["where"] == ""

    def test_the_same_global_batch_is_none(self, tmp_path):
        assert told(batch_grows, Tiny(out=tmp_path).evidence(4)) is None

    def test_nor_are_single_steps_that_are_larger(self, tmp_path):
        """As of a last batch that is padded."""
        more = change(Batch, lambda batch: replace(batch, num_examples=9), size=2, number=2)
        assert told(batch_grows, Tiny(out=tmp_path, edit=more).evidence()) is None
        first = change(Batch, lambda batch: replace(batch, num_examples=9), size=2, step=1)
        assert told(batch_grows, Tiny(out=tmp_path / "first", edit=first).evidence()) is None

    def test_nor_are_smaller_ones(self, tmp_path):
        assert told(batch_grows, Tiny(out=tmp_path, batch_size=lambda size: 8 // size).evidence()) is None

    def test_nor_padding_that_is_known(self, tmp_path):
        def padded(indices, size):
            first, *others = contiguous(indices, size)
            return [first, *others[:-1], others[-1] + indices[:1]] if others else [first]

        evidence = Tiny(out=tmp_path, share=padded).evidence()
        assert told(batch_grows, evidence) is not None
        evidence.found.append(found("examples-repeated"))
        assert told(batch_grows, evidence) is None

    def test_what_nobody_counted_is_not_judged(self, tmp_path):
        edit = change((Batch, Call), lambda row: None)
        tiny = Tiny(out=tmp_path, batch_size=lambda size: 4 * size, edit=edit)
        assert told(batch_grows, tiny.evidence()) is None

    def test_nor_copies_that_know_nothing_of_each_other(self, tmp_path):
        evidence = Tiny(out=tmp_path, batch_size=lambda size: 4 * size).evidence()
        evidence.found.append(found("world-ignored"))
        assert told(batch_grows, evidence) is None


def stepped(times, **place):
    return change(Step, {"num_scheduler_steps": times}, **place)


class TestSchedulePerRank:
    def test_one_that_moves_once_a_rank(self, tmp_path):
        edit = change(Step, lambda s: replace(s, num_scheduler_steps=4), size=4)
        finding = told(schedule_per_rank, Tiny(out=tmp_path, edit=edit).evidence(4))
        assert finding.cause == "schedule-stepped-per-rank"
        assert (
            "Before step 1 the schedule was stepped 4 times on 4 ranks and 0 times on one" in finding.message
        )
        assert finding.evidence["scheduler_steps"] == 4
        assert finding.evidence["lr"] == [0.05]

    def test_or_too_often_with_another_rate(self, tmp_path):
        edit = change(Step, {"num_scheduler_steps": 3, "lr": (0.01,)}, size=2, step=2)
        assert "Before step 2" in told(schedule_per_rank, Tiny(out=tmp_path, edit=edit).evidence()).message

    @pytest.mark.parametrize(
        "edit", [stepped(0), stepped(1), stepped(2), stepped(1, size=2), stepped(3, size=2)],
        ids=["none", "one", "two on any number", "one more", "three with the same rate"],
    )  # fmt: skip
    def test_others_are_silent(self, tmp_path, edit):
        assert told(schedule_per_rank, Tiny(out=tmp_path, edit=edit).evidence()) is None


class TestRateDependsOnWorld:
    def test_a_rate_that_is_multiplied(self, tmp_path):
        finding = told(rate_depends_on_world, Tiny(out=tmp_path, rate=lambda size: 0.05 * size).evidence(4))
        assert finding.cause == "rate-depends-on-world"
        assert "learning rate is 0.2 on 4 ranks and 0.05 on one, 4 times as much" in finding.message
        assert finding.evidence == {
            "step": 1, "rank": 0, "candidate": 0.2, "reference": 0.05, "what": "learning rate",
        }  # fmt: skip

    def test_a_weight_decay(self, tmp_path):
        edit = change(Step, {"weight_decay": (0.5,)}, size=2, rank=1, step=3)
        finding = told(rate_depends_on_world, Tiny(out=tmp_path, edit=edit).evidence())
        assert "In step 3 the weight decay is 0.5 on 2 ranks and 0 on one." in finding.message
        assert finding.evidence["rank"] == 1

    def test_other_settings(self, tmp_path):
        def settings(size, **texts):
            group = OptimizerGroup(parameters=("fc.weight",), settings=texts)
            return change(Optimizer, {"groups": (group,)}, size=size)

        edit = all_of(settings(1, lr="0.2", momentum="0.9"), settings(2, lr="0.1", momentum="0.8"))
        finding = told(rate_depends_on_world, Tiny(out=tmp_path, edit=edit).evidence())
        assert "SGD has momentum=0.8 on 2 ranks" in finding.message
        assert "0.9 on one" in finding.message
        assert finding.evidence["where"] == "train.py:22"
        same = all_of(settings(1, lr="0.2", momentum="0.9"), settings(2, lr="0.1", momentum="0.9"))
        assert told(rate_depends_on_world, Tiny(out=tmp_path / "same", edit=same).evidence()) is None

    def test_the_same_rates_are_silent(self, tmp_path):
        edit = change(Step, lambda step: replace(step, lr=(0.1 / step.step,)))
        assert told(rate_depends_on_world, Tiny(out=tmp_path, edit=edit).evidence()) is None

    def test_so_is_a_schedule_that_follows_from_longer_batches(self, tmp_path):
        evidence = Tiny(out=tmp_path, edit=change(Step, {"lr": (0.01,)}, size=2, step=2)).evidence()
        assert told(rate_depends_on_world, evidence) is not None
        evidence.found.append(found("batch-grows-with-world"))
        assert told(rate_depends_on_world, evidence) is None

    def test_but_not_a_rate_that_begins_with_another(self, tmp_path):
        evidence = Tiny(out=tmp_path, rate=lambda size: 0.05 * size).evidence()
        evidence.found.append(found("batch-grows-with-world"))
        assert told(rate_depends_on_world, evidence) is not None

    def test_nor_one_that_was_explained(self, tmp_path):
        evidence = Tiny(out=tmp_path, rate=lambda size: 0.05 * size).evidence()
        evidence.found.append(found("schedule-stepped-per-rank"))
        assert told(rate_depends_on_world, evidence) is None
