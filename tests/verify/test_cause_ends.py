"""Worlds that are none, exchanges that do not happen, runs that do not end, and what is left."""

from dataclasses import replace

import pytest
from edits import all_of, change, drawing
from judging import found, told
from rows import summary
from sharing import all_to_each
from tiny import Tiny

from samestep.launch.failure import Failure
from samestep.observed import Call, Gradient, Group, Start, State
from samestep.verify.causes import CAUSES, RULES, judged
from samestep.verify.causes.ends import crashed, gradients_not_exchanged, unexplained, world_ignored

FAILURE = Failure(rank=1, sentence="Rank 1 failed: ValueError: no", where="train.py:40")


class TestWorldIgnored:
    def test_copies_that_do_not_know_each_other(self, tmp_path):
        finding = told(world_ignored, Tiny(out=tmp_path, knows_world=False, exchange="none").evidence(3))
        assert finding.cause == "world-ignored"
        assert "None of the 3 processes" in finding.message
        assert finding.evidence == {"steps": [6, 6, 6]}

    def test_a_group_is_a_world(self, tmp_path):
        assert told(world_ignored, Tiny(out=tmp_path).evidence()) is None

    def test_one_rank_that_made_a_group_is_enough(self, tmp_path):
        tiny = Tiny(out=tmp_path, edit=change(Group, lambda group: None, rank=0))
        assert told(world_ignored, tiny.evidence()) is None

    def test_a_rank_that_never_trained_says_nothing(self, tmp_path):
        tiny = Tiny(
            out=tmp_path, knows_world=False,
            edit=lambda row, rank, size: row if rank == 0 or isinstance(row, Start) else None,
        )  # fmt: skip
        assert told(world_ignored, tiny.evidence()) is None


class TestGradientsNotExchanged:
    def test_each_rank_applies_its_own(self, tmp_path):
        finding = told(gradients_not_exchanged, Tiny(out=tmp_path, exchange="none").evidence())
        assert finding.cause == "gradients-not-exchanged"
        assert "In step 1" in finding.message
        assert "fc.weight and 1 others" in finding.message
        assert finding.evidence == {"step": 1, "parameters": ["fc.weight", "fc.bias"], "exchanged": []}

    def test_some_of_them(self, tmp_path):
        shared = summary([1.0], "fc.bias")
        edit = change(Gradient, {"summary": shared}, name="fc.bias", stage="applied")
        finding = told(gradients_not_exchanged, Tiny(out=tmp_path, exchange="none", edit=edit).evidence())
        assert "though it is for others" in finding.message
        assert finding.evidence["parameters"] == ["fc.weight"]
        assert finding.evidence["exchanged"] == ["fc.bias"]

    @pytest.mark.parametrize("settings", [{}, {"exchange": "sum"}, {"clip": "before"}, {"reduction": "sum"}])
    def test_other_faults_of_an_exchange_are_not_this(self, tmp_path, settings):
        assert told(gradients_not_exchanged, Tiny(out=tmp_path, **settings).evidence()) is None

    def test_ranks_with_the_same_examples_have_the_same_gradients(self, tmp_path):
        tiny = Tiny(out=tmp_path, exchange="none", share=all_to_each)
        assert told(gradients_not_exchanged, tiny.evidence()) is None

    def test_what_a_rank_did_not_write_is_not_judged(self, tmp_path):
        tiny = Tiny(out=tmp_path, exchange="none", edit=change(Gradient, {"summary": None}, rank=1))
        assert told(gradients_not_exchanged, tiny.evidence()) is None

    def test_it_is_not_told_of_a_world_that_is_none(self, tmp_path):
        evidence = Tiny(out=tmp_path, exchange="none").evidence()
        evidence.found.append(found("world-ignored"))
        assert told(gradients_not_exchanged, evidence) is None


class TestCrashed:
    def evidence(self, tmp_path, status="failed", failure=FAILURE):
        endings = {"candidate": {"status": status, "failure": failure}}
        return Tiny(out=tmp_path, endings=endings).evidence()

    def test_the_rank_and_the_line_are_named(self, tmp_path):
        finding = told(crashed, self.evidence(tmp_path))
        assert finding.cause == "crashed-in-one-world"
        assert finding.message == "The program runs on one rank and not on 2: Rank 1 failed: ValueError: no"
        assert finding.evidence == {"steps": {"0": 6, "1": 6}, "where": "train.py:40"}
        assert "the ranks were started and found each other" in finding.fix

    def test_without_a_group_nobody_says_that_they_found_each_other(self, tmp_path):
        evidence = self.evidence(tmp_path)
        for rank in evidence.candidate.ranks.values():
            rank.group = None
        assert "found each other" not in told(crashed, evidence).fix

    def test_nor_who_it_was_if_nobody_knows(self, tmp_path):
        finding = told(crashed, self.evidence(tmp_path, failure=None))
        assert finding.message.endswith("it ended")
        assert finding.evidence["where"] == ""

    def test_a_stall_before_the_end_is_one(self, tmp_path):
        assert told(crashed, self.evidence(tmp_path, "stalled")) is not None

    def test_a_stall_after_all_steps_is_not(self, tmp_path):
        evidence = self.evidence(tmp_path, "stalled")
        evidence.pair = Tiny(out=tmp_path / "pair").paired().pair
        assert told(crashed, evidence) is None

    @pytest.mark.parametrize("status", ["finished", "cut"])
    def test_runs_that_went_well_are_not(self, tmp_path, status):
        assert told(crashed, self.evidence(tmp_path, status, failure=None)) is None

    def test_what_is_explained_is_not_told_again(self, tmp_path):
        evidence = self.evidence(tmp_path, "stalled")
        evidence.found.append(found("uneven-steps"))
        assert told(crashed, evidence) is None


class TestUnexplained:
    wrong = staticmethod(
        change(State, lambda s: replace(s, summary=summary([9.0], "fc.bias")), size=2, name="fc.bias", step=2)
    )

    def test_the_place_and_the_sizes_are_told(self, tmp_path):
        evidence = Tiny(out=tmp_path, edit=self.wrong).paired()
        finding = told(unexplained, evidence)
        first = evidence.pair.comparison.first
        assert finding.cause == "unexplained-difference"
        assert f"Step 2: weight fc.bias is off by {first.size:.2g}" in finding.message
        assert f"{first.tolerance:.2g}" in finding.message
        assert (finding.evidence["name"], finding.evidence["candidate"]) == ("fc.bias", 9.0)

    def test_nothing_off_is_nothing_told(self, tmp_path):
        assert told(unexplained, Tiny(out=tmp_path).paired()) is None
        assert told(unexplained, Tiny(out=tmp_path).evidence()) is None

    def test_nor_what_has_a_cause(self, tmp_path):
        evidence = Tiny(out=tmp_path, edit=self.wrong).paired()
        evidence.found.append(found("replicas-drift"))
        assert told(unexplained, evidence) is None

    def test_nor_examples_that_were_drawn_at_random(self, tmp_path):
        drawn = change(Call, lambda c: replace(c, rows=("x",) * len(c.rows)), size=2, name="", step=2)
        other = change(Gradient, lambda g: replace(g, summary=summary([9.0] * 4, g.name)), size=2, step=2)
        tiny = Tiny(out=tmp_path, edit=all_of(drawing, drawn, other))
        evidence = tiny.paired()
        assert evidence.pair.comparison.first.quantity == "inputs"
        assert told(unexplained, evidence) is None


class TestJudged:
    def test_what_is_right_has_no_finding(self, tmp_path):
        assert judged(Tiny(out=tmp_path, norm="global", metric="merged").paired()) == []

    def test_rules_know_what_was_found_before_them(self, tmp_path):
        causes = [finding.cause for finding in judged(Tiny(out=tmp_path, exchange="none").paired())]
        assert causes == ["gradients-not-exchanged"]

    def test_causes_are_told_once(self, tmp_path):
        evidence = Tiny(out=tmp_path, exchange="none").paired()
        assert judged(evidence) is judged(evidence)
        assert len(evidence.found) == 1

    def test_there_is_one_rule_for_each_thing(self):
        assert len(set(RULES)) == len(RULES)
        assert len(set(CAUSES)) == len(CAUSES)


def test_the_pair_without_norms_is_the_one_for_the_exchange(tmp_path):
    evidence = Tiny(out=tmp_path).paired()
    assert evidence.exchange is evidence.pair
    evidence.frozen = Tiny(out=tmp_path / "frozen").paired().pair
    assert evidence.exchange is evidence.frozen
    assert evidence.world_size == 2
