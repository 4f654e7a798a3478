import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torchmetrics.utilities import dim_zero_cat, dim_zero_max, dim_zero_mean, dim_zero_min, dim_zero_sum

from samestep.metrics.reduction import (
    StateMismatchError,
    can_fold,
    compact,
    is_default,
    is_exact,
    reduce_state,
)

ZERO = torch.zeros(())


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (dim_zero_sum, tensor([5.0, 7.0])),
        (dim_zero_max, tensor([4.0, 5.0])),
        (dim_zero_min, tensor([1.0, 2.0])),
        (dim_zero_cat, tensor([4.0, 2.0, 1.0, 5.0])),
        (None, tensor([[4.0, 2.0], [1.0, 5.0]])),
        (lambda stacked: stacked.prod(dim=0), tensor([4.0, 10.0])),
    ],
)
def test_tensors_follow_their_reduction(reduction, expected):
    values = [tensor([4.0, 2.0]), tensor([1.0, 5.0])]
    assert torch.equal(reduce_state(reduction, values, [1, 1], torch.zeros(2)), expected)


def test_a_mean_is_weighted_by_the_updates():
    values = [tensor(1.0), tensor(4.0)]
    assert float(reduce_state(dim_zero_mean, values, [1, 2], ZERO)) == 3.0
    # negative control: torchmetrics' own reduction gives each rank the same weight
    assert float(dim_zero_mean(torch.stack(values))) == 2.5


def test_a_mean_of_equal_values_is_that_value_to_the_bit():
    value = tensor(0.1)
    assert torch.equal(reduce_state(dim_zero_mean, [value] * 3, [1, 2, 4], ZERO), value)
    assert is_exact(dim_zero_mean, [value] * 3)
    assert not is_exact(dim_zero_mean, [value, value + 1])
    assert is_exact(dim_zero_sum, [value, value + 1])


def test_lists_stay_lists_in_order():
    rows = [[tensor([1.0])], [], [tensor([2.0, 3.0]), tensor([4.0])]]
    for reduction in (None, dim_zero_cat):
        merged = reduce_state(reduction, rows, [1, 0, 2], [])
        assert [row.tolist() for row in merged] == [[1.0], [2.0, 3.0], [4.0]]
    assert reduce_state(len, rows, [1, 0, 2], []) == 3


def test_a_scalar_default_goes_with_any_shape():
    values = [ZERO, torch.ones(3), ZERO]
    assert torch.equal(reduce_state(dim_zero_sum, values, [1, 1, 1], ZERO), torch.ones(3))
    assert reduce_state(None, values, [1, 1, 1], ZERO).shape == (3, 3)


@pytest.mark.parametrize("values", [[torch.ones(2), torch.ones(3)], [tensor(5.0), torch.ones(3)]])
def test_other_shapes_are_refused(values):
    # torch would broadcast the second pair without a word
    with pytest.raises(StateMismatchError, match="shapes"):
        reduce_state(dim_zero_sum, values, [1, 1], ZERO)


@settings(deadline=None)
@given(st.lists(st.integers(-100, 100), min_size=2, max_size=8), st.integers(1, 7))
def test_what_folds_can_be_merged_in_two_goes(numbers, cut):
    values, counts = [tensor(n) for n in numbers], [1] * len(numbers)
    cut = min(cut, len(numbers) - 1)
    for reduction in (dim_zero_sum, dim_zero_max, dim_zero_min):
        assert can_fold(reduction, values[0])
        first = reduce_state(reduction, values[:cut], counts[:cut], tensor(0))
        rest = reduce_state(reduction, values[cut:], counts[cut:], tensor(0))
        at_once = reduce_state(reduction, values, counts, tensor(0))
        assert torch.equal(reduce_state(reduction, [first, rest], [1, 1], tensor(0)), at_once)


def test_what_only_the_metric_can_combine_does_not_fold():
    assert not can_fold(None, tensor(1.0))
    assert not can_fold(lambda stacked: stacked[0], tensor(1.0))
    assert can_fold(None, [])


def test_rows_are_joined_only_where_that_changes_nothing():
    rows = [torch.ones(2, 3), torch.zeros(1, 3)]
    (joined,) = compact(dim_zero_cat, rows)
    assert torch.equal(joined, torch.cat(rows))
    assert compact(None, rows) is rows
    ragged = [torch.ones(2, 3), torch.ones(2, 4)]
    assert compact(dim_zero_cat, ragged) is ragged
    mixed = [torch.ones(2), torch.ones(2, dtype=torch.int64)]
    assert compact(dim_zero_cat, mixed) is mixed
    assert compact(dim_zero_cat, [tensor(1.0), torch.ones(2)])[0].shape == (3,)


def test_defaults_are_known_even_if_they_are_nan():
    assert is_default(tensor(float("nan")), tensor(float("nan")))
    assert is_default(tensor(True), tensor(True))
    assert is_default([], [])
    assert not is_default([tensor(1.0)], [])
    assert not is_default(tensor(1.0), ZERO)
