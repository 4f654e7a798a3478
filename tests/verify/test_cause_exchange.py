"""Whether the gradient that is applied is that of the global batch."""

from dataclasses import replace

import numpy as np
import pytest
from edits import all_of, change, drawing
from judging import found, told
from rows import events, summary
from sharing import all_to_each, one_and_rest
from tiny import Tiny

from samestep.observed import Call, Criterion, Gradient, Loss, State, Step
from samestep.verify.causes.exchange import (
    clipped_before_exchange,
    clipped_per_rank,
    loss_reduction,
    penalty_per_rank,
    unequal_weights,
)

UNSEEN = change(Step, {"clips": ()})
"""Clipping by the program's own hand."""


class TestClippedBeforeExchange:
    def test_each_rank_by_its_own_norm(self, tmp_path):
        evidence = Tiny(out=tmp_path, clip="before").paired()
        finding = told(clipped_before_exchange, evidence)
        norms = [step.row.clips[0].norm for step in evidence.candidate.step(1).values()]
        assert finding.cause == "clipped-before-exchange"
        assert f"({norms[0]:.3g} and {norms[1]:.3g})" in finding.message
        assert "clipped to 1 before" in finding.message
        assert finding.evidence["norms"] == {"0": norms[0], "1": norms[1]}
        assert finding.evidence["where"] == "train.py:21"
        assert "train.py:21" in finding.fix

    def test_between_turns_too(self, tmp_path):
        def between(step):
            names = ["batch", "forward", "backward", "clip", "batch", "forward", "backward", "update"]
            clips = tuple(replace(clip, after=3) for clip in step.clips)
            return replace(step, clips=clips, events=events(*names))

        tiny = Tiny(out=tmp_path, clip="before", edit=change(Step, between))
        assert told(clipped_before_exchange, tiny.paired()) is not None

    def test_by_value_there_is_no_norm(self, tmp_path):
        def by_value(step):
            clips = tuple(replace(clip, kind="clip_grad_value_", norm=None) for clip in step.clips)
            return replace(step, clips=clips)

        edit = change(Step, by_value)
        finding = told(clipped_before_exchange, Tiny(out=tmp_path, clip="before", edit=edit).paired())
        assert "In step 1 clip_grad_value_ clips gradients to 1 before" in finding.message
        assert finding.evidence["where"] == "train.py:21"
        tiny = Tiny(out=tmp_path / "large", clip="before", limit=1e3, edit=edit)
        assert told(clipped_before_exchange, tiny.paired()) is None

    @pytest.mark.parametrize(
        "settings",
        [{}, {"clip": "after"}, {"clip": "before", "limit": 1e3}, {"clip": "before", "exchange": "none"}],
        ids=["none", "after", "below the limit", "no exchange"],
    )
    def test_others_are_silent(self, tmp_path, settings):
        assert told(clipped_before_exchange, Tiny(out=tmp_path, **settings).paired()) is None

    def test_so_are_ranks_with_the_same_norm(self, tmp_path):
        tiny = Tiny(out=tmp_path, clip="before", share=all_to_each)
        assert told(clipped_before_exchange, tiny.paired()) is None


class TestClippedPerRank:
    def test_by_norms_of_their_own(self, tmp_path):
        tiny = Tiny(out=tmp_path, clip="after", exchange="none")
        finding = told(clipped_per_rank, tiny.paired())
        assert finding.cause == "clipped-per-rank"
        assert "In step 1 each rank clips by a norm of its own (" in finding.message
        assert set(finding.evidence["norms"]) == {"0", "1"}
        assert finding.evidence["where"] == "train.py:21"

    def test_by_hand_before_the_exchange(self, tmp_path):
        tiny = Tiny(out=tmp_path, clip="before", edit=UNSEEN)
        finding = told(clipped_per_rank, tiny.paired())
        assert "made smaller by factors of their own" in finding.message
        seen = Tiny(out=tmp_path / "seen", clip="before").trace(2)
        norms = [step.row.clips[0].norm for step in seen.step(1).values()]
        # each rank counts by its own factor, the reference by that of the global gradient
        ratio = finding.evidence["factors"][0] / finding.evidence["factors"][1]
        assert ratio == pytest.approx(norms[1] / norms[0], rel=1e-3)

    def test_between_backward_passes(self, tmp_path):
        edits = change(Gradient, {"num_edits": 1}, stage="local", size=2, name="fc.weight")
        tiny = Tiny(out=tmp_path, share=one_and_rest, edit=edits)
        finding = told(clipped_per_rank, tiny.paired())
        assert "changes gradients between backward passes" in finding.message
        assert finding.evidence == {"step": 1, "parameters": ["fc.weight"]}

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"clip": "after"},
            {"clip": "after", "exchange": "none", "limit": 1e3},
            {"reduction": "sum"},
            {"share": one_and_rest},
            {"edit": change(Gradient, {"num_edits": 1}, stage="local")},
        ],
        ids=["none", "after", "below the limit", "all alike", "unequal", "edits that do no harm"],
    )
    def test_others_are_silent(self, tmp_path, settings):
        assert told(clipped_per_rank, Tiny(out=tmp_path, **settings).paired()) is None

    def test_what_is_explained_is_not_told_again(self, tmp_path):
        evidence = Tiny(out=tmp_path, clip="before").paired()
        evidence.found.append(found("clipped-before-exchange"))
        assert told(clipped_per_rank, evidence) is None


class TestLossReduction:
    @pytest.mark.parametrize("size", [2, 4])
    def test_a_sum_that_is_averaged(self, tmp_path, size):
        finding = told(loss_reduction, Tiny(out=tmp_path, reduction="sum").paired(size))
        assert finding.cause == "summed-loss-averaged"
        assert f"every gradient is {size} times smaller than on one rank" in finding.message
        assert "the loss is a sum over examples" in finding.message
        assert finding.evidence["ratio"] == pytest.approx(1 / size)
        assert finding.evidence["where"] == "train.py:20"
        assert "train.py:20" in finding.fix

    def test_whoever_sums_is_told_only_if_it_was_seen(self, tmp_path):
        tiny = Tiny(out=tmp_path, reduction="sum", edit=change(Criterion, lambda row: None))
        finding = told(loss_reduction, tiny.paired())
        assert finding.evidence["reductions"] == []
        assert "is a sum" not in finding.message

    @pytest.mark.parametrize("size", [2, 4])
    def test_means_that_are_summed(self, tmp_path, size):
        finding = told(loss_reduction, Tiny(out=tmp_path, exchange="sum").paired(size))
        assert finding.cause == "averaged-loss-summed"
        assert f"every gradient is {size} times larger than on one rank" in finding.message
        assert finding.evidence["ratio"] == pytest.approx(size)

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"reduction": "global"},
            {"reduction": "global", "exchange": "sum"},
            {"share": one_and_rest},
            {"exchange": "none"},
        ],
        ids=["mean", "global mean", "summed shares", "unequal", "none"],
    )
    def test_others_are_silent(self, tmp_path, settings):
        assert told(loss_reduction, Tiny(out=tmp_path, **settings).paired()) is None

    def test_so_is_another_factor(self, tmp_path):
        def thrice(gradient):
            told = gradient.summary
            numbers = {key: 3 * getattr(told, key) for key in ("mean", "rms", "max_abs")}
            sample = tuple(3 * x for x in told.sample)
            return replace(gradient, summary=replace(told, sample=sample, **numbers))

        tiny = Tiny(out=tmp_path, edit=change(Gradient, thrice, size=2, stage="applied"))
        assert told(loss_reduction, tiny.paired()) is None

    def test_gradients_that_come_after_another_fault_are_not_judged(self, tmp_path):
        other = change(Call, lambda c: replace(c, rows=("x",) * len(c.rows)), size=2, name="", step=2)
        apart = change(Gradient, lambda g: replace(g, summary=summary([9.0] * 4, g.name)), size=2, step=2)
        evidence = Tiny(out=tmp_path, edit=all_of(drawing, other, apart)).paired()
        assert evidence.pair.comparison.first.quantity == "inputs"
        assert told(loss_reduction, evidence) is None
        late = change(
            State, lambda s: replace(s, summary=summary([9.0], "fc.bias")), size=2, name="fc.bias", step=1
        )
        tiny = Tiny(out=tmp_path / "late", edit=all_of(late, apart))
        assert told(loss_reduction, tiny.paired()) is None

    def test_without_a_pair_there_is_no_truth(self, tmp_path):
        assert told(loss_reduction, Tiny(out=tmp_path, reduction="sum").evidence()) is None

    @pytest.mark.parametrize("stage", ["local", "applied"])
    def test_gradients_that_were_not_written_are_passed_over(self, tmp_path, stage):
        edit = change(Gradient, {"summary": None}, stage=stage, size=2)
        finding = told(loss_reduction, Tiny(out=tmp_path, reduction="sum", edit=edit).paired())
        assert (finding is None) == (stage == "applied")


class TestUnequalWeights:
    def test_examples(self, tmp_path):
        finding = told(unequal_weights, Tiny(out=tmp_path, share=one_and_rest).paired())
        assert finding.cause == "unequal-batches-averaged"
        assert "In step 1 ranks have 1 and 7 examples" in finding.message
        assert finding.evidence["examples"] == {"0": 1, "1": 7}
        assert finding.evidence["where"] == "train.py:19"
        assert "train.py:19" in finding.fix

    def test_tokens(self, tmp_path):
        """As many examples on each rank, and other numbers of targets that count."""
        evidence = Tiny(out=tmp_path, targets=lambda index: 1 + index % 7).paired()
        finding = told(unequal_weights, evidence)
        counts = [
            sum(1 + i % 7 for i in step.batches[0].indices) for step in evidence.candidate.step(1).values()
        ]
        assert finding.cause == "tokens-averaged-per-rank"
        assert f"In step 1 ranks have {counts[0]} and {counts[1]} tokens" in finding.message
        assert finding.evidence["targets"] == {"0": counts[0], "1": counts[1]}
        assert finding.evidence["a_turn"] == counts

    def test_tokens_explain_better_than_examples(self, tmp_path):
        tiny = Tiny(out=tmp_path, share=one_and_rest, targets=lambda index: 1 + index % 7)
        assert told(unequal_weights, tiny.paired()).cause == "tokens-averaged-per-rank"

    def test_weights_that_nobody_saw_are_told_by_the_fit(self, tmp_path):
        edit = change(Criterion, lambda row: None)
        evidence = Tiny(out=tmp_path, targets=lambda index: 1 + index % 7, edit=edit).paired()
        finding = told(unequal_weights, evidence)
        counts = [
            sum(1 + i % 7 for i in step.batches[0].indices) for step in evidence.candidate.step(1).values()
        ]
        assert finding.cause == "tokens-averaged-per-rank"
        assert finding.evidence["weights"] == pytest.approx([n / sum(counts) for n in counts], rel=1e-3)
        assert f"{counts[0] / sum(counts):.3g}" in finding.message

    def test_where_the_fit_cannot_tell_examples_do(self, tmp_path):
        edit = change(Gradient, {"summary": None}, stage="local", size=2)
        finding = told(unequal_weights, Tiny(out=tmp_path, share=one_and_rest, edit=edit).paired())
        assert finding.cause == "unequal-batches-averaged"

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"share": one_and_rest, "reduction": "global"},
            {"targets": lambda index: 1 + index % 7, "reduction": "global"},
            {"reduction": "sum"},
            {"exchange": "none"},
        ],
        ids=["equal", "weighed", "weighed by targets", "all alike", "no exchange"],
    )
    def test_others_are_silent(self, tmp_path, settings):
        assert told(unequal_weights, Tiny(out=tmp_path, **settings).paired()) is None

    def test_what_is_explained_is_not_told_again(self, tmp_path):
        evidence = Tiny(out=tmp_path, share=one_and_rest).paired()
        evidence.found.append(found("replicas-drift"))
        assert told(unequal_weights, evidence) is None


class TestPenaltyPerRank:
    wrong = {"reduction": "global", "exchange": "sum"}  # noqa: RUF012

    @pytest.mark.parametrize("size", [2, 4])
    def test_on_the_weights(self, tmp_path, size):
        finding = told(penalty_per_rank, Tiny(out=tmp_path, penalty=0.1, **self.wrong).paired(size))
        assert finding.cause == "penalty-counted-per-rank"
        assert f"off by {0.1 * (size - 1):.3g} times the weights" in finding.message
        assert finding.evidence["factor"] == pytest.approx(0.1 * (size - 1), rel=1e-3)
        assert finding.evidence["where"] == "train.py:20"

    def test_on_their_sizes(self, tmp_path):
        tiny = Tiny(out=tmp_path, penalty=0.1, penalised=np.sign, **self.wrong)
        assert "times the signs of the weights" in told(penalty_per_rank, tiny.paired()).message

    @pytest.mark.parametrize(
        "settings",
        [
            {"penalty": 0.1},
            {"penalty": 0.1, "reduction": "global"},
            {"share": one_and_rest},
            {"exchange": "none"},
            {"clip": "before"},
        ],
        ids=["averaged", "averaged shares", "unequal", "no exchange", "clipped"],
    )
    def test_others_are_silent(self, tmp_path, settings):
        assert told(penalty_per_rank, Tiny(out=tmp_path, **settings).paired()) is None

    def test_without_weights_nothing_is_fitted(self, tmp_path):
        for i, edit in enumerate((change(State, lambda s: None), change(State, {"name": "other"}))):
            tiny = Tiny(out=tmp_path / str(i), penalty=0.1, edit=edit, **self.wrong)
            assert told(penalty_per_rank, tiny.paired()) is None

    def test_what_is_explained_is_not_told_again(self, tmp_path):
        evidence = Tiny(out=tmp_path, penalty=0.1, **self.wrong).paired()
        evidence.found.append(found("unequal-batches-averaged"))
        assert told(penalty_per_rank, evidence) is None


def test_a_line_that_nobody_knows_is_left_out(tmp_path):
    edit = change((Loss, Criterion), {"where": ""})
    finding = told(loss_reduction, Tiny(out=tmp_path, reduction="sum", edit=edit).paired())
    assert finding.evidence["where"] == ""
    assert "()" not in finding.fix
