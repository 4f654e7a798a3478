"""Draws that must differ between ranks and between workers."""

from dataclasses import replace

import pytest
from edits import all_of, change
from judging import found, told
from rows import RANDOM, row
from tiny import Tiny

from samestep.observed import Batch, Call, Loader, Pass, Randomness, RandomState, Worker
from samestep.verify.causes.randomness import equal_workers, same_randomness

OTHER = Randomness(python="P", torch="T", numpy="N")


def workers(*rows):
    """An edit that gives ranks these workers: (rank, worker, generators, moved)."""

    def edit(each, rank, size):
        if not isinstance(each, Pass) or each.loader:
            return each
        own = [
            row(Worker, number=each.number, worker=worker, random=random, moved=moved)
            for on, worker, random, moved in rows
            if on == rank
        ]
        return [each, *own]

    return edit


class TestEqualWorkers:
    def test_workers_that_begin_alike_and_draw(self, tmp_path):
        edit = workers(
            (0, 0, RANDOM, ()), (1, 0, RANDOM, ("numpy",)), (1, 1, replace(OTHER, numpy="n"), ("numpy",))
        )
        finding = told(equal_workers, Tiny(out=tmp_path, edit=edit).evidence())
        assert finding.cause == "workers-with-equal-seeds"
        assert "Workers 0 and 1 of a loader on rank 1" in finding.message
        assert "numpy's generator" in finding.message
        assert finding.evidence == {
            "rank": 1,
            "workers": [0, 1],
            "generator": "numpy",
            "where": "train.py:10",
        }
        assert "train.py:10" in finding.fix

    def test_it_is_seen_on_one_rank_too(self, tmp_path):
        edit = workers((0, 0, RANDOM, ("python",)), (0, 1, RANDOM, ("python",)))

        def on_one(each, rank, size):
            return edit(each, rank, size) if size == 1 else each

        assert (
            told(equal_workers, Tiny(out=tmp_path, edit=on_one).evidence()).evidence["generator"] == "python"
        )

    @pytest.mark.parametrize(
        "edit",
        [
            workers((0, 0, RANDOM, ("numpy",)), (0, 1, OTHER, ("numpy",))),
            workers((0, 0, RANDOM, ("numpy",)), (0, 1, RANDOM, ())),
            workers((0, 0, RANDOM, ("numpy",)), (0, 1, RANDOM, ("python",))),
            workers((0, 0, RANDOM, ("numpy",)), (1, 1, RANDOM, ("numpy",))),
            workers(*[(0, i, replace(RANDOM, numpy=None), ("numpy",)) for i in (0, 1)]),
            workers((0, 0, RANDOM, ("numpy",))),
        ],
        ids=["other states", "one draws", "other draws", "other ranks", "no numpy", "other passes"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        assert told(equal_workers, Tiny(out=tmp_path, edit=edit).evidence()) is None

    def test_a_loader_that_nobody_described_has_no_line(self, tmp_path):
        edit = workers((0, 0, RANDOM, ("numpy",)), (0, 1, RANDOM, ("numpy",)))
        tiny = Tiny(out=tmp_path, edit=all_of(change(Loader, lambda loader: None), edit))
        assert told(equal_workers, tiny.evidence()).evidence["where"] == ""


class TestSameRandomness:
    alike = staticmethod(change(Pass, {"random": RANDOM}, loader=0))

    def test_examples_that_are_fetched_alike(self, tmp_path):
        tiny = Tiny(out=tmp_path, has_augmentation=True, edit=self.alike)
        finding = told(same_randomness, tiny.evidence())
        assert finding.cause == "same-randomness-on-every-rank"
        assert "Ranks 0 and 1 have the same state of numpy's generator" in finding.message
        assert finding.evidence == {"ranks": [0, 1], "generator": "numpy", "where": "train.py:10"}
        assert "train.py:10" in finding.fix

    def test_the_ranks_are_named(self, tmp_path):
        edit = change(Pass, {"random": OTHER}, loader=0, rank=1)
        tiny = Tiny(out=tmp_path, has_augmentation=True, edit=all_of(self.alike, edit))
        assert told(same_randomness, tiny.evidence(4)).evidence["ranks"] == [0, 2]

    def test_states_of_their_own_are_silent(self, tmp_path):
        assert told(same_randomness, Tiny(out=tmp_path, has_augmentation=True).evidence()) is None

    def test_so_are_equal_states_that_nobody_draws_from(self, tmp_path):
        assert told(same_randomness, Tiny(out=tmp_path, edit=self.alike).evidence()) is None

    def test_or_from_another_generator(self, tmp_path):
        states = change(Pass, {"random": replace(OTHER, torch="t")}, loader=0, rank=1)
        tiny = Tiny(out=tmp_path, has_augmentation=True, edit=all_of(self.alike, states))
        assert told(same_randomness, tiny.evidence()) is None

    def test_workers_of_other_ranks(self, tmp_path):
        edit = all_of(
            workers((0, 1, RANDOM, ("torch",)), (1, 1, RANDOM, ("torch",))), change(Batch, {"moved": ()})
        )
        finding = told(same_randomness, Tiny(out=tmp_path, has_augmentation=True, edit=edit).evidence())
        assert "torch's generator when worker 1 fetches examples" in finding.message
        assert finding.evidence["where"] == "train.py:10"

    @pytest.mark.parametrize(
        "edit",
        [
            workers((0, 1, RANDOM, ("torch",)), (1, 1, OTHER, ("torch",))),
            workers((0, 1, RANDOM, ()), (1, 1, RANDOM, ())),
            workers((0, 0, RANDOM, ("torch",)), (1, 1, RANDOM, ("torch",))),
        ],
        ids=["other states", "no draws", "other workers"],
    )
    def test_other_workers_are_silent(self, tmp_path, edit):
        edit = all_of(edit, change(Batch, {"moved": ()}))
        assert told(same_randomness, Tiny(out=tmp_path, has_augmentation=True, edit=edit).evidence()) is None

    def test_so_are_draws_that_do_not_change_examples(self, tmp_path):
        """A data set that seeds by the index of an example, or draws and does not use it."""
        edit = all_of(self.alike, change(Batch, {"moved": ("numpy",)}))
        assert told(same_randomness, Tiny(out=tmp_path, edit=edit).evidence()) is None

    @staticmethod
    def moving(name="torch", **place):
        """Generators that are alike on all ranks and move in each step."""
        return change(
            RandomState, lambda r: replace(r, random=replace(OTHER, **{name: f"{r.step}"})), **place
        )

    @pytest.mark.parametrize("name", ["torch", "numpy", "python"])
    def test_draws_in_the_loop(self, tmp_path, name):
        finding = told(same_randomness, Tiny(out=tmp_path, reduction="sum", edit=self.moving(name)).paired())
        assert f"{name}'s generator when the training loop draws from it" in finding.message
        assert finding.evidence["where"] == ""

    @pytest.mark.parametrize(
        "edit",
        [
            lambda edit: all_of(edit, change(RandomState, {"random": RANDOM}, rank=1)),
            lambda edit: all_of(edit, change(Call, {"moved": ("torch",)}, name="")),
            lambda edit: all_of(edit, change(Batch, {"moved": ("torch",)}, loader=0)),
            lambda edit: change(RandomState, {"random": RANDOM}),
            lambda edit: change(RandomState, lambda row: None),
            lambda edit: all_of(edit, change(RandomState, lambda row: None, rank=1)),
        ],
        ids=["states of their own", "the model's", "the loader's", "none", "unknown", "unknown on one"],
    )
    def test_other_draws_are_silent(self, tmp_path, edit):
        tiny = Tiny(out=tmp_path, reduction="sum", edit=edit(self.moving()))
        assert told(same_randomness, tiny.paired()) is None

    def test_so_are_draws_for_all_ranks_together(self, tmp_path):
        """What ranks make of them is what one rank does."""
        assert told(same_randomness, Tiny(out=tmp_path, edit=self.moving()).paired()) is None

    def test_so_are_those_around_the_beginning_of_a_pass(self, tmp_path):
        """There samplers are shuffled, which is to be the same on all ranks."""
        tiny = Tiny(out=tmp_path, reduction="sum", edit=self.moving(), batch_size=lambda size: 24)
        assert told(same_randomness, tiny.paired()) is None

    def test_what_is_explained_is_not_told_again(self, tmp_path):
        evidence = Tiny(out=tmp_path, reduction="sum", edit=self.moving()).paired()
        evidence.found.append(found("same-examples-on-every-rank"))
        assert told(same_randomness, evidence) is None
