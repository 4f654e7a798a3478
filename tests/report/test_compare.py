import math

from hypothesis import given
from hypothesis import strategies as st

from samestep.report.compare import compare, tolerance


def steps(losses, lr=0.1, examples=64):
    return [
        {"step": k, "epoch": 1, "loss": loss, "lr": lr, "examples": examples * k}
        for k, loss in enumerate(losses, start=1)
    ]


LOSSES = [2.3, 1.9, 1.2, 0.7, 0.3]


def test_the_same_bits_and_the_same_up_to_rounding():
    assert compare(steps(LOSSES), steps(LOSSES)).verdict == "same"
    rounded = [loss * (1 + 2**-23) for loss in LOSSES]  # the next number of 32 bits
    verdict = compare(steps(LOSSES), steps(rounded))
    assert verdict.verdict == "equal" and verdict.num_steps == 5
    assert 0 < verdict.worst_difference <= verdict.worst_tolerance


def test_a_mean_of_means_is_not_explained_by_rounding():
    # four losses on two ranks, three here and one there: averaging the ranks' means weighs the last thrice
    losses = [0.5, 0.6, 0.7, 0.9]
    right = sum(losses) / 4
    naive = (sum(losses[:3]) / 3 + losses[3]) / 2
    verdict = compare(steps([right], examples=4), steps([naive], examples=4))
    assert verdict.verdict == "different" and "step 1: the loss is" in verdict.first_difference


def test_the_first_difference_is_named():
    late = [*LOSSES[:3], 0.71, 0.4]
    assert compare(steps(LOSSES), steps(late)).first_difference.startswith("step 4: the loss")
    assert compare(steps(LOSSES), steps(LOSSES, lr=0.2)).first_difference == "step 1: lr is 0.1 and 0.2"
    assert "examples is 64 and 32" in compare(steps(LOSSES), steps(LOSSES, examples=32)).first_difference
    assert "step 5 was taken by one" in compare(steps(LOSSES), steps(LOSSES[:4])).first_difference


def test_a_loss_that_is_no_number_is_different_and_no_steps_are_no_basis():
    assert compare(steps([1.0]), steps([math.nan])).verdict == "different"
    assert compare(steps([1.0]), steps([math.inf])).verdict == "different"
    assert compare([], []).verdict == "inconclusive"
    assert compare([{"step": 1}], [{"step": 1}]).verdict == "inconclusive"


@given(st.integers(1, 10**6), st.integers(1, 4096), st.floats(1e-6, 1e6))
def test_the_tolerance_grows_with_steps_terms_and_loss(step, terms, loss):
    here = tolerance(step, terms=terms, largest_loss=loss)
    assert here > 0
    assert tolerance(step + 1, terms=terms, largest_loss=loss) > here
    assert tolerance(step, terms=terms + 1, largest_loss=loss) >= here


def test_terms_are_the_examples_of_one_step_and_not_those_so_far():
    reference = steps(LOSSES)
    allowed = tolerance(5, terms=64, largest_loss=2.3)
    inside, outside = ([*LOSSES[:4], LOSSES[4] + part * allowed] for part in (0.9, 1.1))
    assert compare(reference, steps(inside)).verdict == "equal"
    assert compare(reference, steps(outside)).verdict == "different"
    # counted over all steps, five times as many terms would have hidden the difference
    assert outside[4] - LOSSES[4] < tolerance(5, terms=64 * 5, largest_loss=2.3)
