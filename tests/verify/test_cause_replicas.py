"""Models that must be the same on all ranks."""

from dataclasses import replace

import numpy as np
import pytest
from edits import all_of, change
from judging import found, told
from rows import TENSORS, summary
from sharing import all_to_each
from tiny import Tiny

from samestep.observed import Call, Evaluated, Gradient, Model, Optimizer, State, Step
from samestep.verify.causes.replicas import (
    average_on_one_rank,
    drift,
    frozen_on_one_rank,
    parameter_order_differs,
    precision_differs,
    skipped_update,
    start_different,
    unused_on_one_rank,
)


def other_state(**place):
    """The bias has other bits than on other ranks."""
    wrong = summary(np.float32([7.0]), "fc.bias")
    return change(State, {"summary": wrong}, name="fc.bias", size=2, rank=1, **place)


def tensors(*texts, **place):
    return change(Model, {"tensors": texts}, **place)


class TestParameterOrder:
    turned = TENSORS[::-1]

    def test_another_order_on_another_rank(self, tmp_path):
        finding = told(
            parameter_order_differs, Tiny(out=tmp_path, edit=tensors(*self.turned, rank=1)).evidence()
        )
        assert finding.cause == "parameter-order-differs"
        assert (
            "Tensor 0 of Net is fc.weight in one process (rank 0) and fc.bias in another" in finding.message
        )
        assert finding.evidence == {
            "position": 0, "names": ["fc.weight", "fc.bias"], "processes": ["rank 0", "rank 1"],
        }  # fmt: skip

    def test_another_order_in_another_run_of_one_rank(self, tmp_path):
        evidence = Tiny(out=tmp_path).evidence()
        evidence.repeat = Tiny(out=tmp_path / "again", edit=tensors(*self.turned)).trace(1)
        finding = told(parameter_order_differs, evidence)
        assert finding.evidence["processes"] == ["rank 0", "one rank, run again"]
        evidence.repeat = None
        assert told(parameter_order_differs, evidence) is None

    @pytest.mark.parametrize(
        "edit",
        [
            lambda row, rank, size: row,
            tensors(*TENSORS, "head.weight float32 (1,) gradient", rank=1),
            tensors("fc.weight float32 (1, 4)", TENSORS[1], rank=1),
            change(Model, lambda model: None, rank=1),
        ],
        ids=["one order", "other tensors", "another that is frozen", "none"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        assert told(parameter_order_differs, Tiny(out=tmp_path, edit=edit).evidence()) is None


class TestFrozen:
    frozen = ("fc.weight float32 (1, 4)", TENSORS[1])

    def test_on_one_rank(self, tmp_path):
        finding = told(frozen_on_one_rank, Tiny(out=tmp_path, edit=tensors(*self.frozen, rank=1)).evidence(4))
        assert finding.cause == "frozen-on-one-rank"
        assert finding.message == "fc.weight is frozen on rank 1 and trained on the others."
        assert finding.evidence == {"name": "fc.weight", "frozen_on": [1]}

    @pytest.mark.parametrize(
        "edit",
        [lambda row, rank, size: row, tensors(*frozen), tensors(*TENSORS[1:], rank=1)],
        ids=["on none", "on all", "not there on one"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        assert told(frozen_on_one_rank, Tiny(out=tmp_path, edit=edit).evidence()) is None


class TestPrecision:
    def test_autocast_on_one_rank(self, tmp_path):
        edit = change(Call, {"autocast": "bfloat16"}, rank=1, size=2, step=2)
        finding = told(precision_differs, Tiny(out=tmp_path, edit=edit).evidence())
        assert finding.cause == "precision-differs"
        assert "In step 2, fc is computed in no autocast, float32 on rank 0; bfloat16" in finding.message
        assert finding.evidence["by_rank"] == {"0": "no autocast, float32", "1": "bfloat16, float32"}

    def test_outputs_of_another_kind(self, tmp_path):
        half = change(
            Call, lambda c: replace(c, outputs=(replace(c.outputs[0], dtype="float16"),)), rank=0, size=2
        )
        assert (
            "float16 on rank 0" in told(precision_differs, Tiny(out=tmp_path, edit=half).evidence()).message
        )

    @pytest.mark.parametrize(
        "edit",
        [
            lambda row, rank, size: row,
            change(Call, {"autocast": "bfloat16"}),
            change(Call, {"autocast": "bfloat16"}, size=2),
            all_of(
                change(Call, {"autocast": "bfloat16"}, rank=1, name="fc"),
                change(Call, lambda call: None, rank=0, name="fc"),
            ),
        ],
        ids=["none", "on all", "on all of several", "a module that one rank did not call"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        assert told(precision_differs, Tiny(out=tmp_path, edit=edit).evidence()) is None


class TestStart:
    def test_changed_after_the_wrap(self, tmp_path):
        finding = told(start_different, Tiny(out=tmp_path, edit=other_state(step=0)).evidence())
        assert finding.cause == "weights-changed-after-wrap"
        assert "fc.bias differs between ranks before the first step" in finding.message
        assert "though DistributedDataParallel made the replicas equal: rank 1 changed it" in finding.message
        assert finding.evidence["ranks"] == [1]

    def test_nobody_made_them_equal(self, tmp_path):
        edit = all_of(other_state(step=0), change(Model, {"wraps": ()}))
        finding = told(start_different, Tiny(out=tmp_path, edit=edit).evidence())
        assert finding.cause == "replicas-start-different"
        assert "nobody made the replicas equal" in finding.message

    def test_all_of_them_are_counted(self, tmp_path):
        def edit(each, rank, size):
            if isinstance(each, State) and rank and not each.step:
                return replace(each, summary=replace(each.summary, print="other"))
            return each

        assert told(start_different, Tiny(out=tmp_path, edit=edit).evidence()).message.startswith(
            "fc.weight and 1 more"
        )

    @pytest.mark.parametrize(
        "edit",
        [
            lambda row, rank, size: row,
            other_state(step=1),
            all_of(other_state(step=0), change(State, {"role": "buffer"}, name="fc.bias")),
            all_of(other_state(step=0), change(State, {"model": 1})),
        ],
        ids=["equal", "later", "a buffer", "of a model that is not trained"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        assert told(start_different, Tiny(out=tmp_path, edit=edit).evidence()) is None

    def test_what_is_explained_is_not_told_again(self, tmp_path):
        evidence = Tiny(out=tmp_path, edit=other_state(step=0)).evidence()
        evidence.found.append(found("parameter-order-differs"))
        assert told(start_different, evidence) is None


class TestUnused:
    unused = staticmethod(change(Gradient, {"num_backward": 0}, rank=1, size=2, name="fc.bias", step=3))
    own = staticmethod(
        change(Gradient, {"summary": None}, rank=1, size=2, name="fc.bias", step=3, stage="applied")
    )

    def test_an_update_that_is_not_the_same_on_all(self, tmp_path):
        finding = told(unused_on_one_rank, Tiny(out=tmp_path, edit=all_of(self.unused, self.own)).paired())
        assert finding.cause == "unused-on-one-rank"
        assert "In step 3, fc.bias got no gradient on rank 1" in finding.message
        assert "not the same on all ranks" in finding.message
        assert finding.evidence == {"step": 3, "name": "fc.bias", "unused_on": [1]}

    def test_or_not_that_of_one_rank(self, tmp_path):
        wrong = summary(np.float32([9.0]), "fc.bias")
        off = change(Gradient, {"summary": wrong}, size=2, name="fc.bias", step=3, stage="applied")
        finding = told(unused_on_one_rank, Tiny(out=tmp_path, edit=all_of(self.unused, off)).paired())
        assert "not that of one rank" in finding.message

    def test_one_that_is_exchanged_as_zeros_is_silent(self, tmp_path):
        assert told(unused_on_one_rank, Tiny(out=tmp_path, edit=self.unused).paired()) is None

    def test_so_is_one_that_nobody_used(self, tmp_path):
        edit = change(Gradient, {"num_backward": 0, "summary": None}, size=2, name="fc.bias")
        assert told(unused_on_one_rank, Tiny(out=tmp_path, edit=edit).paired()) is None

    def test_what_is_explained_is_not_told_again(self, tmp_path):
        evidence = Tiny(out=tmp_path, edit=all_of(self.unused, self.own)).paired()
        evidence.found.append(found("frozen-on-one-rank"))
        assert told(unused_on_one_rank, evidence) is None


class TestSkippedUpdate:
    def test_one_rank_went_on_without(self, tmp_path):
        edit = all_of(change(Step, {"num_backward": 2}, rank=1, size=2, step=4), other_state(step=5))
        finding = told(skipped_update, Tiny(out=tmp_path, edit=edit).evidence())
        assert finding.cause == "replicas-drift"
        assert finding.message.startswith("Before step 4, rank 1 left out an update")
        assert finding.evidence["backward_passes"] == {"0": 1, "1": 2}
        assert finding.evidence["where"] == "train.py:22"

    def test_a_scaler_left_one_out(self, tmp_path):
        edit = all_of(
            change(Step, {"num_skipped": 1}, rank=0, size=2, step=2),
            change(Optimizer, {"where": ""}),
            other_state(step=2),
        )
        finding = told(skipped_update, Tiny(out=tmp_path, edit=edit).evidence())
        assert finding.message.startswith("Before step 2, rank 0 left out")
        assert finding.evidence["where"] == ""

    @pytest.mark.parametrize(
        "edit",
        [
            lambda row, rank, size: row,
            change(Step, {"num_backward": 3}),
            change(Step, {"num_skipped": 1}, size=2, step=2),
            change(Step, {"num_backward": 2}, rank=1, size=2, step=4),
            all_of(change(Step, {"num_backward": 2}, rank=1, size=2, step=4), other_state(step=3)),
        ],
        ids=["none", "turns", "all ranks", "fewer turns and equal replicas", "later than the difference"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        assert told(skipped_update, Tiny(out=tmp_path, edit=edit).evidence()) is None

    def test_copies_that_know_nothing_of_each_other_are_passed_over(self, tmp_path):
        edit = all_of(change(Step, {"num_backward": 2}, rank=1), other_state(step=5))
        evidence = Tiny(out=tmp_path, edit=edit).evidence()
        evidence.found.append(found("world-ignored"))
        assert told(skipped_update, evidence) is None


class TestDrift:
    def test_by_something_else_than_the_gradient(self, tmp_path):
        finding = told(drift, Tiny(out=tmp_path, edit=other_state(step=3)).evidence())
        assert finding.cause == "replicas-drift"
        assert "After step 3, fc.bias differs between ranks (rank 1 from the first)" in finding.message
        assert "something else than the gradient changed it" in finding.message
        assert finding.evidence["same_gradient"] is True

    def test_by_the_gradient(self, tmp_path):
        finding = told(drift, Tiny(out=tmp_path, exchange="none").evidence())
        assert "After step 1, fc.weight differs" in finding.message
        assert "their gradients were not" in finding.message
        assert finding.evidence["parameters"] == 2

    def test_equal_replicas_are_silent(self, tmp_path):
        assert told(drift, Tiny(out=tmp_path, reduction="sum").evidence(4)) is None

    def test_so_are_buffers(self, tmp_path):
        assert told(drift, Tiny(out=tmp_path, norm="local", share=all_to_each).evidence()) is None
        edit = all_of(other_state(step=3), change(State, {"role": "buffer"}, name="fc.bias"))
        assert told(drift, Tiny(out=tmp_path / "b", edit=edit).evidence()) is None

    def test_what_is_explained_is_not_told_again(self, tmp_path):
        evidence = Tiny(out=tmp_path, exchange="none").evidence()
        evidence.found.append(found("gradients-not-exchanged"))
        assert told(drift, evidence) is None


class TestAverage:
    other = staticmethod(change(Evaluated, {"print": "other"}, rank=1, size=2))

    def test_a_model_that_is_evaluated_with_other_weights(self, tmp_path):
        finding = told(average_on_one_rank, Tiny(out=tmp_path, metric="merged", edit=self.other).evidence())
        assert finding.cause == "average-updated-on-one-rank"
        assert "After step 3, Net is evaluated with weights that differ between ranks" in finding.message
        assert finding.evidence == {"step": 3, "model": "Net", "ranks": [0, 1]}

    def test_one_that_nobody_described(self, tmp_path):
        edit = all_of(self.other, change(Evaluated, {"model": 5}))
        finding = told(average_on_one_rank, Tiny(out=tmp_path, metric="merged", edit=edit).evidence())
        assert "a model is evaluated" in finding.message

    @pytest.mark.parametrize(
        "edit",
        [lambda row, rank, size: row, change(Evaluated, lambda row: None, rank=1)],
        ids=["the same", "on one rank only"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        tiny = Tiny(out=tmp_path, metric="merged", edit=edit)
        assert told(average_on_one_rank, tiny.evidence()) is None

    @pytest.mark.parametrize("cause", ["replicas-drift", "parameter-order-differs"])
    def test_what_is_explained_is_not_told_again(self, tmp_path, cause):
        evidence = Tiny(out=tmp_path, metric="merged", edit=self.other).evidence()
        evidence.found.append(found(cause))
        assert told(average_on_one_rank, evidence) is None


def test_a_rank_that_left_nothing_says_nothing(tmp_path):
    tiny = Tiny(out=tmp_path, metric="merged", edit=lambda each, rank, size: None if rank else each)
    evidence = tiny.evidence()
    for rule in (
        parameter_order_differs, frozen_on_one_rank, precision_differs, start_different, unused_on_one_rank,
        skipped_update, drift, average_on_one_rank,
    ):  # fmt: skip
        assert told(rule, evidence) is None
