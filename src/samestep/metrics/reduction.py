"""One state of a metric from the values that several ranks have of it; pure.

Follows the reduction that the state declares, in the order given. Knows nothing of ranks or metrics.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import (
    dim_zero_cat,
    dim_zero_max,
    dim_zero_mean,
    dim_zero_min,
    dim_zero_sum,
)

Reduction = Callable[..., Any] | None

_PAIRWISE: dict[Reduction, Callable[[Tensor, Tensor], Tensor]] = {
    dim_zero_sum: torch.add,
    dim_zero_max: torch.maximum,
    dim_zero_min: torch.minimum,
}


class StateMismatchError(ValueError):
    """The values of a state have shapes that do not go together."""


def reduce_state(reduction: Reduction, values: Sequence[Any], counts: Sequence[int], default: Any) -> Any:
    """The value of a state over several parts, of which each had `counts` updates.

    Lists stay lists and become longer, so that the result looks like that of one process. Tensors without
    a reduction are stacked; combining them is up to the metric.
    """
    if any(isinstance(value, list) for value in values):
        rows = [row for value in values for row in (value if isinstance(value, list) else [value])]
        return rows if reduction is None or reduction is dim_zero_cat else reduction(rows)
    if reduction is dim_zero_cat:
        return dim_zero_cat(list(values))
    values = _one_shape(values, default)
    if reduction in _PAIRWISE:
        return reduce(_PAIRWISE[reduction], values)
    if reduction is dim_zero_mean:
        return _weighted_mean(values, counts)
    stacked = torch.stack(list(values))
    return stacked if reduction is None else reduction(stacked)


def can_fold(reduction: Reduction, value: Any) -> bool:
    """Whether merging some parts now and the result with others later equals merging all at once."""
    if isinstance(value, list):
        return reduction is None or reduction is dim_zero_cat
    return reduction in _PAIRWISE or reduction is dim_zero_mean or reduction is dim_zero_cat


def is_exact(reduction: Reduction, values: Sequence[Any]) -> bool:
    """Whether the merged value is that of one pass; a mean of different means is not, for want of weights."""
    return reduction is not dim_zero_mean or _all_equal(values)


def compact(reduction: Reduction, value: Any) -> Any:
    """The rows of a list that will be concatenated, as one tensor; other values as they are."""
    if reduction is not dim_zero_cat or not isinstance(value, list) or len(value) < 2:
        return value
    if not all(isinstance(row, Tensor) for row in value):
        return value
    if len({(row.dtype, row.device, row.shape[1:]) for row in value}) > 1:
        return value
    return [dim_zero_cat(value)]


def is_default(value: Any, default: Any) -> bool:
    """Whether a state still is what it was before the first update."""
    if not isinstance(default, Tensor):
        return isinstance(value, list) and not value
    return (
        isinstance(value, Tensor)
        and value.shape == default.shape
        and torch.allclose(value, default.to(value), rtol=0.0, atol=0.0, equal_nan=True)
    )


def _one_shape(values: Sequence[Tensor], default: Any) -> Sequence[Tensor]:
    """The values in one shape: a scalar default that an update did not touch goes with any shape."""
    shapes = [tuple(value.shape) for value in values]
    if len(set(shapes)) == 1:
        return values
    touched = {shape for shape, value in zip(shapes, values, strict=True) if not is_default(value, default)}
    if len(touched) != 1 or default.numel() != 1:
        raise StateMismatchError(f"the shapes {shapes}")
    (shape,) = touched
    return [value if tuple(value.shape) == shape else value.reshape(()).expand(shape) for value in values]


def _weighted_mean(values: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    if _all_equal(values):
        return values[0]
    total = reduce(torch.add, (value.double() * count for value, count in zip(values, counts, strict=True)))
    mean = total / sum(counts)
    return mean.to(values[0].dtype) if values[0].is_floating_point() else mean


def _all_equal(values: Sequence[Tensor]) -> bool:
    return all(torch.equal(value, values[0]) for value in values[1:])
