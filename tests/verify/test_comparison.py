"""Where two runs differ by more than rounding, and where they do not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from edits import all_of, change, drawing
from rows import row, summary, trace
from tiny import Tiny

from samestep.experiment import Experiment
from samestep.observed import Batch, Call, End, Gradient, Model, State, Step
from samestep.verify.comparison import (
    QUANTITIES,
    Comparison,
    Difference,
    compare,
    differing_states,
    values,
)
from samestep.verify.replay import replayed_batches
from samestep.verify.rounding import DRAWS, relative_error, unit_roundoff

LENGTH = 8
"""Examples in a global batch: the terms of each sum."""


def off_by(factor, name="fc.weight"):
    """An edit that has a weight off by a relative error from step 2 on, on several ranks only."""

    def edit(each, rank, size):
        if isinstance(each, State) and each.name == name and each.step >= 2 and size > 1:
            return replace(each, summary=scaled(each.summary, factor))
        return each

    return edit


def scaled(told, factor):
    numbers = {key: getattr(told, key) * factor for key in ("mean", "rms", "max_abs")}
    return replace(told, print=told.print + "x", sample=tuple(x * factor for x in told.sample), **numbers)


def compared(tiny, size=2, has_noise=False):
    reference, candidate = tiny.trace(1), tiny.trace(size)
    noise = []
    if has_noise:
        batches = replayed_batches(candidate, reference, order=1)
        noise = [(reference, tiny.trace(1, Experiment(batches=batches)))]
    return compare(reference, candidate, noise)


class TestSame:
    def test_a_run_is_the_same_as_itself(self, tmp_path):
        tiny = Tiny(out=tmp_path)
        found = compare(tiny.trace(1), tiny.trace(1))
        assert found.is_same
        assert not found.is_different
        assert found.first is None
        assert set(found.marks.values()) == {"same", "equal"}
        assert found.marks["weight", 6] == "same"

    def test_nothing_is_not_the_same(self, tmp_path):
        nothing = trace(tmp_path, [row(Model)])
        found = compare(nothing, nothing)
        assert (found.num_steps, found.is_same, found.is_different) == (0, False, False)

    def test_other_bits_of_a_buffer_are_not_the_same(self, tmp_path):
        tiny = Tiny(out=tmp_path, norm="global")
        a = tiny.trace(1)
        tiny.edit = change(
            State, lambda state: replace(state, summary=scaled(state.summary, 1.0)), role="buffer"
        )
        found = compare(a, tiny.trace(1))
        assert found.marks["buffer", 1] == "equal"
        assert found.marks["weight", 1] == "same"
        assert not found.is_same


class TestEqual:
    @pytest.mark.parametrize("size", [2, 3, 4])
    @pytest.mark.parametrize("norm", ["", "global"])
    def test_ranks_that_do_it_right_differ_by_rounding(self, tmp_path, size, norm):
        found = compared(Tiny(out=tmp_path, norm=norm, reduction="global"), size)
        assert not found.is_different
        assert found.num_steps == 6
        assert found.marks["examples", 1] == "same"
        assert found.marks["learning rate", 1] == "same"
        assert found.marks["forward", 6] == "equal"

    def test_a_fault_of_a_thousandth_is_seen(self, tmp_path):
        found = compared(Tiny(out=tmp_path, edit=off_by(1.001)), has_noise=True)
        first = found.first
        assert (first.step, first.quantity, first.name, first.ranks) == (2, "weight", "fc.weight", (0, 1))
        assert first.size > 20 * first.tolerance > 0
        assert first.candidate == pytest.approx(1.001 * first.reference)
        assert found.marks["weight", 2] == "different"
        assert found.marks["weight", 1] != "different"

    def test_one_of_a_rounding_is_not(self, tmp_path):
        assert not compared(Tiny(out=tmp_path, edit=off_by(1 + 2**-23))).is_different

    def test_the_tolerance_is_that_of_the_formats_and_lengths(self, tmp_path):
        found = compared(Tiny(out=tmp_path, edit=off_by(1.001)))
        largest = max(abs(found.first.reference), abs(found.first.candidate))
        allowed = 2 * DRAWS * relative_error(LENGTH, unit_roundoff("float32"))
        assert found.growth == 1.0
        # of the weight itself, or of the largest update of it
        assert allowed * largest / 2 < found.first.tolerance < 10 * allowed * largest

    def test_coarse_numbers_on_the_way_count(self, tmp_path):
        half = change(Call, lambda call: replace(call, outputs=(replace(call.outputs[0], dtype="bfloat16"),)))
        assert compared(Tiny(out=tmp_path / "a", edit=off_by(1.001))).is_different
        assert not compared(Tiny(out=tmp_path / "b", edit=all_of(off_by(1.001), half))).is_different


class TestNoise:
    def pair(self, tmp_path, factor):
        """A run and one that differs from it by rounding, as it were."""
        tiny = Tiny(out=tmp_path)
        one = tiny.trace(1)
        tiny.edit = change((State, Gradient), lambda row: replace(row, summary=scaled(row.summary, factor)))
        return one, tiny.trace(1)

    def test_more_of_it_allows_more(self, tmp_path):
        tiny = Tiny(out=tmp_path, edit=off_by(1.001))
        reference, candidate = tiny.trace(1), tiny.trace(2)
        assert compare(reference, candidate).is_different
        noise = [self.pair(tmp_path / "n", 1.0005)]
        found = compare(reference, candidate, noise)
        assert not found.is_different
        assert found.growth > 1.0

    def test_little_of_it_hides_nothing(self, tmp_path):
        tiny = Tiny(out=tmp_path, edit=off_by(1.001))
        reference, candidate = tiny.trace(1), tiny.trace(2)
        assert compare(reference, candidate, [self.pair(tmp_path / "n", 1 + 1e-6)]).is_different

    def test_so_much_of_it_that_nothing_can_be_told_ends_the_comparison(self, tmp_path):
        tiny = Tiny(out=tmp_path, edit=off_by(1.5))
        reference, candidate = tiny.trace(1), tiny.trace(2)
        found = compare(reference, candidate, [self.pair(tmp_path / "n", 1.5)])
        assert (found.blind_from, found.num_steps) == (1, 0)
        assert not found.is_different
        assert not found.is_same

    def test_what_is_not_finite_is_no_measure(self, tmp_path):
        one, other = self.pair(tmp_path / "n", math.inf)
        assert compare(one, one, [(one, other)]).growth == 1.0


class TestSilentGradients:
    """A bias before a normalisation: its gradient is rounding, and Adam makes full steps of it."""

    @staticmethod
    def edit(size_of_gradient):
        def edit(each, rank, size):
            if isinstance(each, Gradient) and each.name == "fc.bias":
                told = summary(np.float32([size_of_gradient * (1 if size == 1 else -1)]), "fc.bias")
                return replace(each, summary=told)
            if isinstance(each, State) and each.name == "fc.bias" and each.step:
                return replace(each, summary=summary(np.float32([0.1 if size == 1 else 0.2]), "fc.bias"))
            return each

        return edit

    def test_they_are_passed_over(self, tmp_path):
        found = compared(Tiny(out=tmp_path, edit=self.edit(1e-8)))
        assert not found.is_different
        assert found.growth == 1.0

    @staticmethod
    def shifted(by, first):
        """Running means that are off on several ranks, from a step on."""

        def edit(each, rank, size):
            is_mean = isinstance(each, State) and each.role == "buffer" and size > 1 and each.step >= first
            if not is_mean or "float" not in each.summary.dtype:
                return each
            told = each.summary
            numbers = {key: getattr(told, key) + by for key in ("mean", "rms", "max_abs")}
            return replace(each, summary=replace(told, print="other", **numbers))

        return edit

    def test_running_means_may_have_the_shift_that_the_norm_takes_away(self, tmp_path):
        """The bias is 0.1 off from the first update on: what the next forward pass sees is."""
        tiny = Tiny(out=tmp_path, norm="global", edit=all_of(self.edit(1e-8), self.shifted(0.05, 2)))
        assert not compared(tiny).is_different

    @pytest.mark.parametrize(
        ("by", "first", "step"),
        [(0.05, 1, 1), (0.9, 2, 2)],
        ids=["before anything was updated", "by more than that"],
    )
    def test_but_no_other(self, tmp_path, by, first, step):
        tiny = Tiny(out=tmp_path, norm="global", edit=all_of(self.edit(1e-8), self.shifted(by, first)))
        found = compared(tiny).first
        assert (found.quantity, found.step) == ("buffer", step)

    def test_nor_without_such_a_bias(self, tmp_path):
        found = compared(Tiny(out=tmp_path, norm="global", edit=self.shifted(0.05, 2))).first
        assert (found.quantity, found.step) == ("buffer", 2)

    def test_those_that_mean_something_are_not(self, tmp_path):
        assert compared(Tiny(out=tmp_path, edit=self.edit(1e-2))).first.name == "fc.bias"

    def test_and_their_noise_does_not_hide_others(self, tmp_path):
        tiny = Tiny(out=tmp_path, edit=all_of(self.edit(1e-8), off_by(1.001)))
        reference, candidate = tiny.trace(1), tiny.trace(2)
        noise = Tiny(out=tmp_path / "noise", edit=self.edit(1e-8))
        found = compare(reference, candidate, [(noise.trace(1), noise.trace(2))])
        assert found.first.name == "fc.weight"


class TestNotNumbers:
    @staticmethod
    def broken(value, **place):
        told = summary(np.full((1, 4), value, np.float32), "fc.weight")
        return change(
            (Gradient, State), lambda row: replace(row, summary=told), name="fc.weight", step=3, **place
        )

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_on_one_side_they_are_a_difference(self, tmp_path, value):
        for i, size in enumerate((1, 2)):
            found = compared(Tiny(out=tmp_path / str(i), edit=self.broken(value, size=size)))
            assert (found.first.step, found.first.quantity, found.first.size) == (3, "gradient", math.inf)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_on_both_they_are_none(self, tmp_path, value):
        assert not compared(Tiny(out=tmp_path, edit=self.broken(value))).is_different

    def test_tensors_without_elements_are_equal(self, tmp_path):
        empty = summary(np.zeros((0, 3), np.float32), "empty")

        def edit(each, rank, size):
            if isinstance(each, State) and each.name == "fc.bias":
                return [each, replace(each, name="empty", summary=empty)]
            return each

        assert not compared(Tiny(out=tmp_path, edit=edit)).is_different


class TestInputs:
    def test_other_examples_are_the_first_difference(self, tmp_path):
        swapped = change(
            Batch, lambda batch: replace(batch, indices=(*batch.indices[:-1], 23)), step=2, rank=1
        )
        found = compared(Tiny(out=tmp_path, edit=change(Batch, {}, size=1)))
        assert not found.is_different
        found = compared(Tiny(out=tmp_path / "other", edit=swapped))
        first = found.first
        assert (first.step, first.quantity, first.size, first.tolerance) == (2, "examples", 1.0, 0.0)
        assert (first.reference, first.candidate) == ("8 examples", "1 others among 8 examples")
        assert ("inputs", 2) not in found.marks

    def test_other_inputs_of_the_same_examples_are_one(self, tmp_path):
        edit = all_of(
            drawing,
            change(Call, lambda c: replace(c, rows=("x", *c.rows[1:])), size=2, rank=1, name="", step=2),
            change(Gradient, lambda g: replace(g, summary=scaled(g.summary, 1.5)), size=2, step=2),
        )
        first = compared(Tiny(out=tmp_path, edit=edit)).first
        assert (first.step, first.quantity, first.size) == (2, "inputs", 1.0)

    def test_they_are_forgiven_where_gradients_agree(self, tmp_path):
        """A model that is given its examples in another shape, and says a number about its whole batch."""
        edit = all_of(
            drawing,
            change(Call, lambda c: replace(c, rows=("x", *c.rows[1:])), size=2, rank=1, name=""),
            change(Call, lambda c: replace(c, outputs=(scaled(c.outputs[0], 1.5),)), size=2, name=""),
        )
        found = compared(Tiny(out=tmp_path, edit=edit))
        assert not found.is_different
        assert found.marks["inputs", 2] == found.marks["forward", 2] == "equal"

    def test_but_not_where_they_do_not(self, tmp_path):
        edit = all_of(
            change(
                Call, lambda c: replace(c, outputs=(scaled(c.outputs[0], 1.5),)), size=2, name="fc", step=3
            ),
            change(Gradient, lambda g: replace(g, summary=scaled(g.summary, 1.5)), size=2, step=3),
        )
        first = compared(Tiny(out=tmp_path, edit=edit)).first
        assert (first.step, first.quantity, first.name) == (3, "forward", "fc")

    def test_nor_where_there_are_none(self, tmp_path):
        edit = all_of(
            change(
                Call, lambda c: replace(c, outputs=(scaled(c.outputs[0], 1.5),)), size=2, name="fc", step=3
            ),
            change(Gradient, lambda g: None),
        )
        assert compared(Tiny(out=tmp_path, edit=edit)).first.quantity == "forward"

    def test_ragged_steps_are_compared_by_gradients(self, tmp_path):
        """Ranks that pad to their own longest: fewer elements, other rows, and the same gradient."""

        def padded(call):
            output = replace(scaled(call.outputs[0], 1.5), shape=(9, 1))
            return replace(call, outputs=(output,), rows=tuple(f"{name}0" for name in call.rows))

        found = compared(Tiny(out=tmp_path, edit=change(Call, padded, size=2)))
        assert not found.is_different
        assert ("forward", 1) not in found.marks
        assert ("inputs", 1) not in found.marks
        edit = all_of(
            change(Call, padded, size=2),
            change(Gradient, lambda g: replace(g, summary=scaled(g.summary, 1.5)), size=2, step=3),
        )
        first = compared(Tiny(out=tmp_path / "wrong", edit=edit)).first
        assert (first.step, first.quantity) == (3, "gradient")


class TestSettings:
    def test_learning_rates_are_compared_exactly(self, tmp_path):
        near = math.nextafter(0.05, 1.0)
        found = compared(Tiny(out=tmp_path, edit=change(Step, {"lr": (near,)}, size=2, rank=1, step=4)))
        first = found.first
        assert (first.step, first.quantity, first.name, first.ranks) == (4, "learning rate", "lr", (1,))
        assert (first.reference, first.candidate, first.tolerance) == (0.05, near, 0.0)
        assert found.marks["learning rate", 3] == "same"
        assert found.marks["learning rate", 4] == "different"

    def test_so_are_weight_decays_and_numbers_of_groups(self, tmp_path):
        found = compared(Tiny(out=tmp_path / "a", edit=change(Step, {"weight_decay": (0.1,)}, size=2)))
        assert (found.first.name, found.first.size) == ("weight_decay", 0.1)
        found = compared(Tiny(out=tmp_path / "b", edit=change(Step, {"lr": (0.05, 0.05)}, size=2)))
        assert found.first.quantity == "learning rate"

    def test_runs_that_end_by_themselves_take_the_same_steps(self, tmp_path):
        tiny = Tiny(out=tmp_path)
        one = tiny.trace(1)
        tiny.num_passes = 1
        first = compare(one, tiny.trace(2)).first
        assert (first.step, first.quantity, first.ranks, first.size) == (4, "steps", (0,), 3.0)
        assert (first.reference, first.candidate) == (6.0, 3.0)
        tiny.edit = change(End, lambda end: None)
        assert not compare(one, tiny.trace(2)).is_different
        tiny.edit = change(End, {"status": "failed"}, rank=1)
        assert not compare(one, tiny.trace(2)).is_different


class TestOrder:
    def test_the_first_is_the_earliest_in_the_way_of_a_step(self):
        differences = [
            Difference(step=step, quantity=quantity, name="n", ranks=(0,), size=1.0, tolerance=0.0)
            for step, quantity in ((2, "examples"), (1, "weight"), (1, "gradient"))
        ]
        found = Comparison(num_steps=2, differences=differences)
        assert (found.first.step, found.first.quantity) == (1, "gradient")
        assert found.first_of("examples").step == 2
        assert found.first_of("metric") is None

    def test_differences_come_in_that_order(self, tmp_path):
        found = compared(Tiny(out=tmp_path, reduction="sum", rate=lambda size: 0.01 * 3**size))
        places = [(d.step, QUANTITIES.index(d.quantity)) for d in found.differences]
        assert places == sorted(places)
        assert {"gradient", "learning rate", "weight", "forward"} <= {d.quantity for d in found.differences}


class TestForget:
    def test_what_turned_out_to_be_nothing_is_no_difference(self, tmp_path):
        found = compared(Tiny(out=tmp_path, reduction="sum"))
        found.forget(lambda difference: difference.step > 1)
        assert {difference.step for difference in found.differences} == {1}
        assert found.marks["gradient", 1] == "different"
        assert found.marks["gradient", 2] == "equal"
        found.forget(lambda difference: True)
        assert not found.is_different
        assert "different" not in found.marks.values()


class TestValues:
    def test_models_after_the_first_have_their_numbers_in_names(self, tmp_path):
        edit = change((Model, Call, State), {"model": 1})
        names = {(v.quantity, v.name) for v in values(Tiny(out=tmp_path, edit=edit).trace(1), 1)}
        assert {("forward", "model1.fc"), ("forward", "model1.output"), ("weight", "model1.fc.bias")} <= names

    def test_what_one_run_lacks_is_not_compared(self, tmp_path):
        tiny = Tiny(out=tmp_path, edit=off_by(1.001))
        one = tiny.trace(1)
        tiny.edit = all_of(off_by(1.001), change(State, lambda s: None, size=2))
        found = compare(one, tiny.trace(2))
        assert not found.is_different
        assert not found.is_same

    def test_a_step_that_was_not_taken_has_none(self, tmp_path):
        assert list(values(Tiny(out=tmp_path).trace(1), 99)) == []


def test_states_that_differ_between_ranks(tmp_path):
    same = Tiny(out=tmp_path).trace(2)
    assert differing_states(same, 3) == {}
    apart = Tiny(out=tmp_path, exchange="none").trace(2)
    assert set(differing_states(apart, 3)) == {(0, "fc.weight"), (0, "fc.bias")}
    assert differing_states(apart, 0) == {}
