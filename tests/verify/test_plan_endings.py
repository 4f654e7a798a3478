"""Runs that tell little or nothing, and what becomes of the verdict."""

from dataclasses import replace

import pytest
from edits import change, nothing
from judging import causes
from rows import row
from tiny import Named, Tiny

from samestep.launch.failure import Failure
from samestep.observed import (
    End,
    Model,
    Spawn,
)
from samestep.verify.plan import verify
from samestep.verify.runner import Run

FAILURE = Failure(rank=1, sentence="Rank 1 failed: ValueError: no", where="train.py:40")


class TestInconclusive:
    @pytest.mark.parametrize(
        "edit, said",
        [
            (nothing, "took no optimizer step"),
            (
                lambda each, rank, size: (
                    [each, row(Spawn, num_processes=4)]
                    if isinstance(each, Model)
                    else nothing(each, rank, size)
                ),
                "starts 4 processes of its own",
            ),
            (
                lambda each, rank, size: (
                    replace(each, saw_torch=False) if isinstance(each, End) else nothing(each, rank, size)
                ),
                "never loaded torch",
            ),
        ],
        ids=["no steps", "spawns", "no torch"],
    )
    def test_programs_that_do_not_train(self, tmp_path, edit, said):
        tiny = Tiny(out=tmp_path, edit=edit)
        verification = verify(tiny, [2])
        assert verification.verdict == "inconclusive"
        assert said in verification.remarks[0]
        assert list(tiny.asked) == ["reference"]

    def test_programs_that_do_not_run_on_one_rank(self, tmp_path):
        endings = {"reference": {"status": "failed", "failure": FAILURE}}
        verification = verify(Tiny(out=tmp_path, endings=endings), [2])
        assert verification.verdict == "inconclusive"
        assert verification.remarks == [
            f"on one rank the program does not run, so there is no reference: {FAILURE.sentence}"
        ]

    def test_nor_leave_anything_there(self, tmp_path):
        def run(name, world_size, experiment, *, why):
            return Run(
                name=name, world_size=world_size, folder=tmp_path, status="finished", experiment=experiment
            )

        verification = verify(run, [2])
        assert verification.verdict == "inconclusive"
        assert "no rank left any rows" in verification.remarks[0]
        assert "it left no observations" in verification.remarks[1]

    def test_models_that_are_split_over_ranks(self, tmp_path):
        tiny = Tiny(out=tmp_path, edit=change(Model, {"kind": "FSDPNet"}, size=2))
        verification = verify(tiny, [2])
        assert verification.verdict == "inconclusive"
        assert "only replicas of a whole model are compared" in verification.remarks[0]

    def test_nor_run_seeded(self, tmp_path):
        tiny = Named(out=tmp_path, is_seeded=False, part="repeat-seeded", edit_there=nothing)
        verification = verify(tiny, [2])
        assert verification.verdict == "inconclusive"
        assert "2-ranks" not in tiny.asked

    @pytest.mark.parametrize("failure", [None, FAILURE])
    def test_ranks_that_leave_nothing(self, tmp_path, failure):
        tiny = Tiny(out=tmp_path)

        def run(name, world_size, experiment, *, why):
            made = tiny(name, world_size, experiment, why=why)
            empty = tmp_path / "empty"
            return made if world_size == 1 else replace(made, folder=empty, failure=failure, status="failed")

        verification = verify(run, [2])
        assert verification.verdict == "inconclusive"
        said = failure.sentence if failure else "no rank left observations"
        assert f"on 2 ranks: {said}" in verification.remarks

    @pytest.mark.parametrize("part", ["alike", "given"])
    def test_experiments_that_take_no_step(self, tmp_path, part):
        tiny = Named(out=tmp_path, has_dropout=True, part=part, edit_there=nothing)
        verification = verify(tiny, [2])
        assert verification.verdict == "inconclusive"
        assert verification.remarks[-1] == "on 2 ranks no step could be compared"

    def test_one_that_leaves_nothing(self, tmp_path):
        tiny = Tiny(out=tmp_path, has_dropout=True)

        def run(name, world_size, experiment, *, why):
            made = tiny(name, world_size, experiment, why=why)
            return replace(made, folder=tmp_path / "empty") if "given" in name else made

        assert verify(run, [2]).verdict == "inconclusive"


class TestEndings:
    def ended(self, tmp_path, status, edit=lambda row, rank, size: row):
        endings = {"2-ranks": {"status": status, "failure": FAILURE}}
        tiny = Named(out=tmp_path, endings=endings, part="2-ranks", edit_there=edit)
        return tiny, verify(tiny, [2])

    @pytest.mark.parametrize("status", ["failed", "stalled"])
    def test_one_that_did_not_get_far_is_a_finding(self, tmp_path, status):
        tiny, verification = self.ended(tmp_path, status, nothing)
        assert verification.verdict == "different"
        assert causes(verification) == ["crashed-in-one-world"]
        assert FAILURE.sentence in verification.findings[0].message
        assert list(tiny.asked) == ["reference", "repeat", "2-ranks"]

    def test_so_is_one_in_which_one_rank_died(self, tmp_path):
        def edit(each, rank, size):
            is_late = getattr(each, "step", 0) > 2 or isinstance(each, End)
            return None if rank == 1 and is_late else each

        _, verification = self.ended(tmp_path, "failed", edit)
        assert causes(verification) == ["crashed-in-one-world"]
        assert verification.findings[0].evidence["steps"] == {"0": 6, "1": 2}

    def test_one_that_stalls_after_its_last_step_is_judged(self, tmp_path):
        tiny, verification = self.ended(tmp_path, "stalled")
        assert verification.verdict == "equal"
        assert "1-rank-turned-2" in tiny.asked

    def test_so_is_one_that_was_cut(self, tmp_path):
        _, verification = self.ended(tmp_path, "cut", change(End, lambda end: None))
        assert verification.verdict == "equal"
