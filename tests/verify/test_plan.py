"""Which runs are made, and what the verdict is."""

import json
from dataclasses import replace

import pytest
from edits import all_of, change, drawing, nothing
from judging import causes
from pretending import FULL
from rows import row, summary, write
from sharing import all_to_each, contiguous, one_and_rest, shuffled
from tiny import Named, Tiny

from samestep.experiment import Experiment, pass_key
from samestep.observed import (
    Batch,
    Call,
    Gradient,
    Loader,
    Model,
    Pass,
    PassEnd,
    RandomState,
    State,
    Worker,
)
from samestep.verify.plan import verify
from samestep.verify.runner import Run

ALWAYS = ["reference", "repeat", "2-ranks", "1-rank-turned-2"]


def halves(number, num_examples, size):
    """Each rank has a part of its own, so that global batches are others than on one rank."""
    order = shuffled(number, num_examples, size)
    a_rank = 8 // size
    parts = contiguous(order, size)
    return [
        i for begin in range(0, len(parts[0]), a_rank) for part in parts for i in part[begin : begin + a_rank]
    ]


def experiment(tiny, name):
    return tiny.asked[name][1]


class TestRuns:
    def test_without_anything_random_there_are_four(self, tmp_path):
        tiny = Tiny(out=tmp_path)
        verification = verify(tiny, [1, 2])
        assert verification.verdict == "equal"
        assert list(tiny.asked) == [run.name for run in verification.runs] == ALWAYS
        assert [tiny.asked[name][0] for name in ALWAYS] == [1, 1, 2, 1]
        assert [experiment(tiny, name) for name in ALWAYS[:3]] == [Experiment()] * 3
        turned = experiment(tiny, "1-rank-turned-2").batches[pass_key(0, 1)]
        assert [sorted(batch) for batch in turned] == [
            sorted(shuffled(1, 24, 1)[i : i + 8]) for i in (0, 8, 16)
        ]
        assert (verification.remarks, verification.findings) == ([], [])

    def test_other_global_batches_are_given_to_one_rank(self, tmp_path):
        tiny = Tiny(out=tmp_path, order=halves)
        assert verify(tiny, [2]).verdict == "equal"
        assert list(tiny.asked) == [*ALWAYS[:3], "1-rank-given-2", "1-rank-turned-2"]
        given = experiment(tiny, "1-rank-given-2")
        assert given.batches[pass_key(0, 1)] == tuple(tuple(halves(1, 24, 2)[i : i + 8]) for i in (0, 8, 16))
        assert tiny.whys["1-rank-given-2"] == "given the batches of 2 ranks"

    def test_dropout_is_taken_out_of_both(self, tmp_path):
        tiny = Tiny(out=tmp_path, has_dropout=True)
        assert verify(tiny, [2]).verdict == "equal"
        assert list(tiny.asked) == [*ALWAYS[:3], "2-ranks-alike", "1-rank-given-2", "1-rank-turned-2"]
        for name in ("2-ranks-alike", "1-rank-given-2", "1-rank-turned-2"):
            assert experiment(tiny, name).is_dropout_off
            assert not experiment(tiny, name).are_examples_seeded
        assert not experiment(tiny, "2-ranks").is_any
        assert tiny.whys["2-ranks-alike"] == "dropout off"

    def test_a_model_without_layers_of_dropout_may_have_some_all_the_same(self, tmp_path):
        tiny = Tiny(out=tmp_path, has_dropout=True, edit=change(Model, {"dropouts": ()}))
        verify(tiny, [2])
        assert experiment(tiny, "2-ranks-alike").is_dropout_off
        for name in ("2-ranks-alike", "1-rank-given-2", "1-rank-turned-2"):
            assert tiny.whys[name].endswith("any dropout off")

    def test_and_one_that_draws_nothing_has_none(self, tmp_path):
        tiny = Tiny(out=tmp_path, order=halves)
        verify(tiny, [2])
        assert not any("dropout" in why for why in tiny.whys.values())

    def test_so_are_draws_of_loaders(self, tmp_path):
        tiny = Tiny(out=tmp_path, has_augmentation=True)
        assert verify(tiny, [2]).verdict == "equal"
        assert experiment(tiny, "2-ranks-alike").are_examples_seeded
        assert not experiment(tiny, "2-ranks-alike").is_dropout_off

    def test_and_of_their_workers(self, tmp_path):
        draws = change(Model, lambda model: [model, row(Worker, moved=("numpy",))], size=1)
        tiny = Tiny(out=tmp_path, edit=draws)
        verify(tiny, [2])
        assert experiment(tiny, "2-ranks-alike").are_examples_seeded

    def test_norms_are_frozen_to_see_what_else_there_is(self, tmp_path):
        tiny = Tiny(out=tmp_path, norm="local", reduction="sum", rate=lambda size: 0.005)
        verification = verify(tiny, [2])
        assert list(tiny.asked) == [*ALWAYS, "2-ranks-alike-frozen", "1-rank-given-2-frozen"]
        assert experiment(tiny, "2-ranks-alike-frozen").are_norms_frozen
        assert experiment(tiny, "1-rank-given-2-frozen").are_norms_frozen
        assert set(causes(verification)) == {"norm-not-synchronised", "summed-loss-averaged"}

    def test_norms_that_do_no_harm_are_left_alone(self, tmp_path):
        tiny = Tiny(out=tmp_path, norm="global")
        assert verify(tiny, [2]).verdict == "equal"
        assert list(tiny.asked) == ALWAYS

    def test_what_is_not_seeded_is_seeded(self, tmp_path):
        tiny = Tiny(out=tmp_path, is_seeded=False)
        verification = verify(tiny, [2])
        assert verification.verdict == "equal"
        assert list(tiny.asked) == ["reference", "repeat", "reference-seeded", "repeat-seeded", *ALWAYS[2:]]
        assert experiment(tiny, "repeat").seed is None
        assert {experiment(tiny, name).seed for name in list(tiny.asked)[2:]} == {20_240_229}
        assert "does not seed its generators" in verification.remarks[0]

    def test_what_differs_all_the_same_is_noise(self, tmp_path):
        class Drawing(Tiny):
            """One that draws by the clock, as it were."""

            def __call__(self, name, world_size, experiment=None, *, why=""):
                return super().__call__(name, world_size, None, why=why)

        verification = verify(Drawing(out=tmp_path, is_seeded=False), [2])
        assert "though they were seeded" in verification.remarks[1]

    def test_another_order_of_tensors_is_not_mended_by_seeds(self, tmp_path):
        def turned(each, rank, size):
            if isinstance(each, Model):
                return replace(each, tensors=each.tensors[::-1])
            return (
                replace(each, summary=replace(each.summary, print="x")) if isinstance(each, State) else each
            )

        tiny = Named(out=tmp_path, part="repeat", edit_there=turned)
        verification = verify(tiny, [2])
        assert "reference-seeded" not in tiny.asked
        assert causes(verification) == ["parameter-order-differs"]

    def test_a_printed_number_that_is_off_is_looked_into(self, tmp_path):
        tiny = Tiny(out=tmp_path, metric="kept")
        verification = verify(tiny, [2])
        assert causes(verification) == ["metric-updated-on-one-rank"]
        assert list(tiny.asked) == [*ALWAYS, "2-ranks-others-starved", "2-ranks-first-starved"]
        batches = experiment(tiny, "2-ranks-others-starved").batches
        assert set(batches) == {pass_key(1, 1, 1), pass_key(1, 2, 1)}
        # the second rank has examples 5 to 10, in batches of three
        assert batches[pass_key(1, 1, 1)] == ((5, 5, 5), (5, 5, 5))
        first = experiment(tiny, "2-ranks-first-starved").batches
        assert first[pass_key(1, 1, 0)] == ((0, 0, 0), (0, 0))

    def test_one_that_is_right_is_not(self, tmp_path):
        tiny = Tiny(out=tmp_path, metric="merged")
        assert verify(tiny, [2]).verdict == "equal"
        assert list(tiny.asked) == ALWAYS

    def test_nor_one_that_the_first_rank_found_alone(self, tmp_path):
        def alone(each, rank, size):
            return None if rank and getattr(each, "loader", 0) == 1 else each

        tiny = Tiny(out=tmp_path, metric="first", edit=alone)
        assert causes(verify(tiny, [2])) == ["metric-of-one-rank"]
        assert list(tiny.asked) == ALWAYS

    def test_programs_without_a_loader_are_compared_as_they_are(self, tmp_path):
        tiny = Tiny(out=tmp_path, edit=change((Loader, Pass, PassEnd, Batch), lambda row: None))
        assert verify(tiny, [2]).verdict == "equal"
        assert list(tiny.asked) == ALWAYS[:3]


class TestWorlds:
    def test_they_are_sorted_and_one_is_always_there(self, tmp_path):
        tiny = Tiny(out=tmp_path)
        verification = verify(tiny, [4, 2, 2, 1])
        assert verification.worlds == [1, 2, 4]
        assert set(verification.comparisons) == {2, 4}
        assert list(tiny.asked) == [*ALWAYS, "4-ranks", "1-rank-turned-4"]

    def test_one_alone_has_nothing_to_be_compared_with(self, tmp_path):
        verification = verify(Tiny(out=tmp_path), [1])
        assert verification.verdict == "inconclusive"
        assert "only one rank was asked for" in verification.remarks[0]

    def test_the_worst_counts(self, tmp_path):
        tiny = Tiny(out=tmp_path, rate=lambda size: 0.1 if size == 4 else 0.05)
        verification = verify(tiny, [2, 4])
        assert verification.verdict == "different"
        assert causes(verification) == ["rate-depends-on-world"]
        assert verification.first_difference.quantity == "learning rate"
        assert not verification.comparisons[2].is_different
        assert ("learning rate", 1, "different") in verification.table

    def test_what_could_not_be_judged_is_worse_than_equal(self, tmp_path):
        tiny = Named(out=tmp_path, part="4-ranks", edit_there=nothing)
        verification = verify(tiny, [2, 4])
        assert verification.verdict == "inconclusive"
        assert verification.remarks == ["on 4 ranks no step could be compared"]

    def test_a_cause_is_told_once(self, tmp_path):
        verification = verify(Tiny(out=tmp_path, reduction="sum"), [2, 4])
        assert causes(verification) == ["summed-loss-averaged"]
        assert "2 times smaller" in verification.findings[0].message


class TestVerdicts:
    def test_same(self, tmp_path):
        """One rank takes turns at what two do at once."""
        assert verify(Tiny(out=tmp_path, turns=lambda size: 2 // size), [2]).verdict == "same"

    @pytest.mark.parametrize(
        "settings, cause",
        [
            ({"reduction": "sum"}, "summed-loss-averaged"),
            ({"exchange": "sum"}, "averaged-loss-summed"),
            ({"exchange": "none"}, "gradients-not-exchanged"),
            ({"knows_world": False, "exchange": "none"}, "world-ignored"),
            ({"clip": "before"}, "clipped-before-exchange"),
            ({"norm": "local"}, "norm-not-synchronised"),
            ({"reduction": "global", "exchange": "sum", "penalty": 0.1}, "penalty-counted-per-rank"),
            ({"share": one_and_rest}, "unequal-batches-averaged"),
            ({"batch_size": lambda size: 4 * size}, "batch-grows-with-world"),
            ({"rate": lambda size: 0.05 * size}, "rate-depends-on-world"),
            ({"metric": "first"}, "metric-of-one-rank"),
            ({"metric": "averaged"}, "metric-averaged-without-counts"),
        ],
    )
    def test_different_by_one_cause(self, tmp_path, settings, cause):
        verification = verify(Tiny(out=tmp_path, **settings), [2])
        assert verification.verdict == "different"
        assert causes(verification) == [cause]
        assert verification.first_difference is not None

    def test_the_cause_comes_before_what_follows_from_it(self, tmp_path):
        verification = verify(Tiny(out=tmp_path, share=all_to_each), [2])
        assert causes(verification)[0] == "same-examples-on-every-rank"

    @pytest.mark.parametrize(
        "settings",
        [
            {"clip": "after"},
            {"norm": "global", "metric": "merged"},
            {"share": one_and_rest, "reduction": "global"},
            {"has_dropout": True, "has_augmentation": True},
            {"turns": lambda size: 2},
            {"penalty": 0.1},
            {"num_examples": 20, "reduction": "global"},
        ],
    )
    def test_right_twins_are_equal(self, tmp_path, settings):
        verification = verify(Tiny(out=tmp_path, **settings), [2, 4])
        assert causes(verification) == []
        assert verification.verdict == "equal"

    def test_draws_in_the_loop_leave_it_open(self, tmp_path):
        edit = all_of(
            drawing,
            change(Call, lambda c: replace(c, rows=("x",) * len(c.rows)), size=2, name="", step=2),
            change(Gradient, lambda g: replace(g, summary=summary([9.0] * 4, g.name)), size=2, step=2),
        )
        verification = verify(Tiny(out=tmp_path, edit=edit), [2])
        assert verification.verdict == "inconclusive"
        assert "the inputs of step 2 are not those of one rank" in verification.remarks[0]
        assert verification.first_difference.quantity == "inputs"

    def test_a_finding_without_a_difference_of_the_pair_is_shown_as_it_is(self, tmp_path):
        """Given the same batches the runs agree, and by themselves they do not."""
        verification = verify(Tiny(out=tmp_path, batch_size=lambda size: 4 * size), [2])
        assert not verification.comparisons[2].is_different
        assert verification.first_difference.quantity == "examples"

    @staticmethod
    def chaotic(out, is_off):
        """Another order of examples alone changes gradients by half of their size, from step 4 on."""

        def shaken(gradient):
            told = gradient.summary
            sample = tuple(1.5 * x for x in told.sample)
            return replace(gradient, summary=replace(told, sample=sample)) if gradient.step > 3 else gradient

        off = change(Gradient, shaken, size=2) if is_off else (lambda row, rank, size: row)
        return verify(Named(out=out, part="turned", edit=off, edit_there=change(Gradient, shaken)), [2])

    def test_where_rounding_grows_too_far_nothing_can_be_told(self, tmp_path):
        verification = self.chaotic(tmp_path, is_off=True)
        assert verification.comparisons[2].num_steps == 3
        assert "nothing can be told from step 4 on" in verification.remarks[0]
        assert causes(verification) == []

    def test_runs_that_agree_all_the_same_are_equal(self, tmp_path):
        verification = self.chaotic(tmp_path, is_off=False)
        assert verification.comparisons[2].num_steps == 6
        assert (verification.verdict, verification.remarks) == ("equal", [])

    @staticmethod
    def kinked(out, orders):
        """On 2 ranks the gradient of step 3 is off by a hundredth; on one rank in runs of these names."""

        def off(gradient):
            told = gradient.summary
            return replace(gradient, summary=replace(told, sample=tuple(1.01 * x for x in told.sample)))

        here = change(Gradient, off, step=3, size=2)
        return verify(Named(out=out, part=orders, edit=here, edit_there=change(Gradient, off, step=3)), [2])

    def test_a_difference_without_a_cause_is_looked_for_in_more_orders(self, tmp_path):
        verification = self.kinked(tmp_path, "turned-2-3")
        assert [run.name for run in verification.runs][-3:] == [f"1-rank-turned-2-{n}" for n in (2, 3, 4)]
        assert (verification.verdict, causes(verification)) == ("equal", [])

    def test_what_none_of_them_shows_stays_a_difference(self, tmp_path):
        verification = self.kinked(tmp_path, "of no run")
        assert verification.runs[-1].name == "1-rank-turned-2-4"
        assert (verification.verdict, causes(verification)) == ("different", ["unexplained-difference"])

    def test_a_difference_with_a_cause_is_not_looked_for_in_more_orders(self, tmp_path):
        verification = verify(Tiny(out=tmp_path, reduction="sum"), [2])
        assert not any("turned-2-" in run.name for run in verification.runs)

    def test_long_runs_are_judged_by_their_first_steps(self, tmp_path):
        verification = verify(Tiny(out=tmp_path, num_examples=80, num_passes=3), [2])
        assert verification.comparisons[2].num_steps == FULL
        assert verification.verdict == "equal"


class TestJson:
    def test_the_fields_that_others_build_on(self, tmp_path):
        told = json.loads(
            json.dumps(verify(Tiny(out=tmp_path, reduction="sum"), [2]).to_json(), allow_nan=False)
        )
        assert told["verdict"] == "different"
        assert told["worlds"] == [1, 2]
        first = told["first_difference"]
        assert {"step", "quantity", "name", "ranks", "size", "tolerance"} <= set(first)
        assert (first["step"], first["quantity"], first["name"], first["ranks"]) == (
            1,
            "gradient",
            "fc.weight",
            [0, 1],
        )
        assert first["size"] > first["tolerance"]
        (finding,) = told["findings"]
        assert set(finding) == {"cause", "message", "evidence", "fix"}
        assert told["runs"][2] == {"name": "2-ranks", "world_size": 2, "status": "finished", "seconds": 1.0}
        assert ["gradient", 1, "different"] in told["table"]

    def test_without_a_difference_there_is_none(self, tmp_path):
        told = verify(Tiny(out=tmp_path), [2]).to_json()
        assert (told["first_difference"], told["findings"], told["remarks"]) == (None, [], [])
        assert told["table"][0] == ["examples", 1, "same"]


def test_a_run_is_what_its_folder_says(tmp_path):
    """A runner may leave rows of any kind, also such as nobody reads."""
    write(tmp_path / "x", [[row(RandomState)]])
    run = Run(name="x", world_size=1, folder=tmp_path / "x", status="finished", experiment=Experiment())
    assert verify(lambda *args, **more: run, [2]).verdict == "inconclusive"
