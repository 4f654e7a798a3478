"""Which batch went into which step, told by the order of things."""

import pytest
from rows import row

from samestep.observed import Batch
from samestep.verify.feeding import Feeding

EVALUATION = "evaluation"


def fed(*happenings):
    """A number is a backward pass of that step, a text of two or three digits the batch that it names.

    "17" is example 7 of loader 1, and "172" the same in pass 2.
    """
    feeding = Feeding()
    for each in happenings:
        if each == EVALUATION:
            feeding.evaluate()
        elif isinstance(each, str):
            number = int(each[2:] or 1)
            feeding.hand_out(row(Batch, loader=int(each[0]), number=number, indices=(int(each[1]),), step=9))
        else:
            feeding.train(each)
    return feeding


def steps(feeding):
    """The batches of each step, as they were written above, without their pass."""
    found = {}
    for step, batch in feeding.shared_out():
        found.setdefault(step, []).append(f"{batch.loader}{batch.indices[0]}")
    return found


@pytest.mark.parametrize(
    "happenings, expected",
    [
        (["00", 1, "01", 2, "02", 3], {1: ["00"], 2: ["01"], 3: ["02"]}),
        (["00", "01", 1, "02", 2, 3], {1: ["00"], 2: ["01"], 3: ["02"]}),
        (["00", "01", 1, "02", 2, "03", 3], {1: ["00"], 2: ["01"], 3: ["02"]}),
        (["00", 1, "01", 1, "02", 2, "03", 2], {1: ["00", "01"], 2: ["02", "03"]}),
        (["00", "01", 1, "02", "03", 2], {1: ["00", "01"], 2: ["02", "03"]}),
        (["00", 1, 1, "01", 2, 2], {1: ["00"], 2: ["01"]}),
        (["00", 1, 2, "01", 3, 4], {1: ["00"], 3: ["01"]}),
        (["00", "10", 1, "01", "11", 2], {1: ["00", "10"], 2: ["01", "11"]}),
        (["00", 1, "01", 2, "002", 3, "012", 4], {1: ["00"], 2: ["01"], 3: ["00"], 4: ["01"]}),
        (["00", "01", 1, 2, "002", "012", 3, 4], {1: ["00"], 2: ["01"], 3: ["00"], 4: ["01"]}),
        ([1, 2], {}),
        (["00", "01"], {}),
        ([], {}),
    ],
    ids=[
        "one by one", "fetched ahead", "one too many", "several turns a step", "several batches a turn",
        "several turns a batch", "several steps a batch", "two loaders", "passes", "passes fetched ahead",
        "no loader", "no training", "nothing",
    ],
)  # fmt: skip
def test_each_batch_goes_to_the_step_that_trained_on_it(happenings, expected):
    assert steps(fed(*happenings)) == expected


class TestLoaders:
    def test_those_that_are_evaluated_are_told_apart(self):
        feeding = fed("00", 1, "01", 2, "10", EVALUATION, "11", EVALUATION, "002", 3)
        assert feeding.training == {0}
        assert feeding.evaluation == {1}
        assert steps(feeding) == {1: ["00"], 2: ["01"], 3: ["00"]}

    def test_one_that_is_used_for_both_is_trained_on(self):
        feeding = fed("00", 1, "01", 2, "002", EVALUATION)
        assert feeding.training == {0}
        assert feeding.evaluation == set()

    def test_one_whose_batch_was_only_looked_at_is_neither(self):
        """As by a program that shows a few examples before it trains."""
        feeding = fed("10", "00", 1, "01", 2, "02", 3, "03", 4, "11", "12")
        assert feeding.training == {0}
        assert feeding.evaluation == set()

    def test_one_of_few_batches_is_trained_on_all_the_same(self):
        """As a loader of labels that is used in some steps only."""
        feeding = fed("00", 1, "01", 2, "02", 3, "03", "10", 4)
        assert feeding.training == {0, 1}

    def test_a_model_may_be_evaluated_without_a_loader(self):
        assert fed(EVALUATION, "00", 1).training == {0}
