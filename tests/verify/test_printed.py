"""Which printed numbers are compared, and how closely."""

import pytest
from rows import row, trace

from samestep.observed import Call, Loss, Model, Said, Step
from samestep.verify.printed import compared_lines


class Lines:
    """Runs of one step each, after which lines are said."""

    def __init__(self, folder, relative=1e-6):
        self.folder, self.relative, self.count = folder, relative, 0

    def run(self, *lines, size=1, losses=(), **more):
        """Lines are templates and numbers."""
        self.count += 1
        rows = [row(Model), row(Call), *(row(Loss, value=value) for value in losses), row(Step)]
        for template, *numbers in lines:
            rows.append(row(Said, template=template, numbers=tuple(numbers), **more))
        return trace(self.folder / str(self.count), *([rows] * size))

    def compared(self, ours, theirs, *others, losses=(), size=2, **more):
        reference = self.run(ours, **more)
        candidate = self.run(theirs, size=size, losses=losses, **more)
        others = [self.run(other) for other in others]
        return list(compared_lines(reference, candidate, others, 1, self.relative))

    def off(self, *args, **more):
        return [line.position for line in self.compared(*args, **more) if line.gap > line.tolerance]


@pytest.fixture
def lines(tmp_path):
    return Lines(tmp_path)


def test_a_number_that_is_another_is_off(lines):
    (line,) = lines.compared(("val #", 0.5), ("val #", 0.25))
    assert (line.reference, line.candidate, line.gap) == (0.5, 0.25, 0.25)
    assert line.gap > line.tolerance
    assert (line.said.template, line.said.where) == ("val #", "train.py:30")


def test_the_same_number_is_not(lines):
    assert lines.off(("val #", 0.5), ("val #", 0.5)) == []


@pytest.mark.parametrize(
    "template",
    [
        "took # s",
        "# sec a step",
        "#ms",
        "epoch time: #",
        "elapsed=#",
        "# it/s",
        "# seconds",
        "duration #",
        "# min",
    ],
)
def test_times_are_passed_over(lines, template):
    assert lines.compared((template, 1.25), (template, 9.75)) == []


@pytest.mark.parametrize(
    "template", ["val #", "score # samples", "# sites", "error # #", "times table #", "F1 # mean", "# items"]
)
def test_words_that_only_look_like_times_are_not(lines, template):
    numbers = [1.25] * template.count("#")
    others = [9.75] * template.count("#")
    assert len(lines.compared((template, *numbers), (template, *others))) == len(numbers)


def test_only_the_number_beside_the_word_is_a_time(lines):
    assert lines.off(("val # (# s)", 0.5, 1.5), ("val # (# s)", 0.25, 9.5)) == [0]


def test_losses_of_training_are_passed_over(lines):
    template = "train loss # val #"
    assert lines.off((template, 0.5, 0.5), (template, 0.25, 0.25)) == [1]


@pytest.mark.parametrize(
    "said, losses",
    [(0.375, [0.9, 0.375]), (1.275, [0.9, 0.375]), (0.6375, [0.9, 0.375]), (0.38, [0.3812])],
    ids=["the last", "their sum", "their mean", "rounded"],
)
def test_so_is_what_the_rank_itself_had_for_a_loss(lines, said, losses):
    assert lines.compared(("loss #", 2.5), ("loss #", said), losses=losses) == []


def test_a_number_near_to_no_loss_is_compared(lines):
    assert lines.off(("loss #", 2.5), ("loss #", 0.39), losses=[0.3812]) == [0]


def test_digits_that_are_shown_may_round_to_either_side(lines):
    assert lines.off(("val #", 0.3), ("val #", 0.2999)) == []
    assert lines.off(("val #", 0.3), ("val #", 0.2998)) == [0]
    assert lines.off(("accuracy #", 50.0), ("accuracy #", 49.9)) == []
    assert lines.off(("accuracy #", 50.0), ("accuracy #", 49.8)) == [0]


def test_whole_numbers_have_nothing_to_round(lines):
    assert lines.off(("right: #", 10.0), ("right: #", 9.0)) == [0]


def test_rounding_that_was_measured_is_allowed(tmp_path):
    assert Lines(tmp_path / "a", 1e-2).off(("val #", 0.512345), ("val #", 0.512399)) == []
    assert Lines(tmp_path / "b", 1e-6).off(("val #", 0.512345), ("val #", 0.512399)) == [0]


def test_small_numbers_are_compared_too(lines):
    assert lines.off(("val #", 1.5e-05), ("val #", 1.6e-05)) == [0]
    assert lines.off(("val #", 1.5e-05), ("val #", 1.5e-05)) == []


def test_the_number_of_ranks_may_be_said(lines):
    assert lines.compared(("ranks #", 1.0), ("ranks #", 2.0)) == []
    assert lines.off(("ranks #", 1.0), ("ranks #", 3.0)) == [0]


def test_so_may_counts_of_work_which_ranks_share(lines):
    assert lines.compared(("# examples", 24.0), ("# examples", 12.0)) == []
    assert lines.compared(("# steps", 12.0), ("# steps", 24.0)) == []
    assert lines.off(("# right", 24.0), ("# right", 13.0)) == [0]
    assert lines.off(("val #", 0.5), ("val #", 0.25)) == [0]


@pytest.mark.parametrize("template", ["rank #: val #", "my val # #", "local # #", "GPU # #"])
def test_and_numbers_that_are_said_to_be_a_ranks_own(lines, template):
    assert lines.compared((template, 0.0, 0.5), (template, 0.0, 0.25)) == []
    assert lines.off(("frank # #", 0.0, 0.5), ("frank # #", 0.0, 0.25)) == [1]


def test_what_varies_on_one_rank_is_passed_over(lines):
    assert lines.off(("memory #", 10.5), ("memory #", 20.5), ("memory #", 10.5)) == [0]
    assert (
        lines.compared(("memory #", 10.5), ("memory #", 20.5), ("memory #", 10.5), ("memory #", 17.5)) == []
    )


def test_another_run_that_said_less_does_not_matter(lines):
    assert lines.off(("val #", 0.5), ("val #", 0.25), ("other #", 0.5)) == [0]


def test_lines_are_compared_with_those_that_look_alike(lines):
    assert lines.compared(("val #", 0.5), ("test #", 0.25)) == []
    assert lines.compared(("val #", 0.5), ("val #", 0.5, 0.25)) == []


def test_the_second_is_compared_with_the_second(lines):
    ours = lines.run(("val #", 0.5), ("val #", 0.25))
    theirs = lines.run(("val #", 0.5), ("val #", 0.125), size=2)
    found = list(compared_lines(ours, theirs, [], 1, 1e-6))
    assert [(line.reference, line.candidate) for line in found] == [(0.5, 0.5), (0.25, 0.125)]


def test_only_what_follows_an_evaluation_is_compared(lines):
    assert lines.compared(("val #", 0.5), ("val #", 0.25), after_evaluation=False) == []
    reference, candidate = lines.run(("val #", 0.5)), lines.run(("val #", 0.25), size=2)
    assert list(compared_lines(reference, candidate, [], 2, 1e-6)) == []


def test_a_template_with_fewer_marks_than_numbers_is_taken_as_it_is(lines):
    assert lines.off(("val", 0.5), ("val", 0.25)) == [0]
