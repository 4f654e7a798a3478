"""Losses as a step needs them: a sum and the weight that it is divided by.

Knows over what each of torch's criteria takes its mean. A criterion that is not in the table is refused
rather than guessed at: a wrong weight trains, and trains something else.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samestep.errors import ConfigError, LossError
from samestep.task import Loss

Key = int | str
Weight = Callable[[Any, Tensor, Tensor, Tensor], Tensor | float]


def supervised(
    criterion: Callable[..., Tensor], *, inputs: Key | Sequence[Key] = 0, target: Key = 1
) -> Callable[[nn.Module, Any], Loss]:
    """The loss function of a task whose batches hold inputs and a target.

    `inputs` and `target` are positions in a batch that is a tuple, or keys of one that is a dict; several
    inputs become several arguments of the model. `criterion` is a criterion of `torch.nn` with
    `reduction="mean"`, whose mean over the whole global batch is the step's loss; or any function or
    module that returns one loss an example (or token, pixel, …), whose plain mean is. Criteria over
    several tensors (`GaussianNLLLoss`, `CosineEmbeddingLoss`, `MarginRankingLoss`) take a model that
    returns a tuple.
    """
    per_element, weigh = _without_reduction(criterion)
    kind = _kind(criterion)
    input_keys = [inputs] if isinstance(inputs, int | str) else list(inputs)

    def loss(model: nn.Module, batch: Any) -> Loss:
        expected = _pick(batch, target, "target")
        outputs = model(*(_pick(batch, key, "inputs") for key in input_keys))
        arguments = _arguments(kind, outputs, expected)
        if isinstance(per_element, nn.Module) and isinstance(arguments[0], Tensor):
            # class weights follow the outputs to their device; nothing moves once they are there
            per_element.to(arguments[0].device)
        losses = per_element(*arguments)
        if not isinstance(losses, Tensor) or losses.ndim == 0:
            found = "a single number" if isinstance(losses, Tensor) else type(losses).__name__
            raise LossError(
                f"The criterion {_name(criterion)} returned {found}; a sum over all ranks needs one loss an "
                'example: use the class from torch.nn, or reduction="none" in your function.'
            )
        # half precision would overflow or round away in a long sum
        total = losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32))
        return Loss(total, weigh(per_element, arguments[0], expected, losses), outputs=outputs)

    return loss


def _without_reduction(criterion: Any) -> tuple[Callable[..., Any], Weight]:
    """The criterion without its mean, and what that mean divides by."""
    if isinstance(criterion, type) or not callable(criterion):
        raise ConfigError(f"The criterion is {criterion!r}; give an instance such as torch.nn.MSELoss().")
    if isinstance(criterion, nn.Module) and any(True for _ in criterion.parameters()):
        raise ConfigError(
            f"The criterion {_name(criterion)} has parameters, which no optimizer would see: make it a part "
            "of the model, and let the model return the losses."
        )
    reduction = getattr(criterion, "reduction", "none")
    if reduction == "none":
        return copy.deepcopy(criterion), _elements
    if reduction == "sum":
        raise ConfigError(
            f'{_name(criterion)} has reduction="sum", whose step grows with the number of examples in the '
            "batch; a step here is divided by the weight of its global batch. Use "
            'reduction="mean" and, for the same step, a learning rate that is batch_size times as large.'
        )
    kind = _kind(criterion)
    if kind is None or reduction not in ("mean", "batchmean"):
        raise ConfigError(
            f"{_name(criterion)} has reduction={reduction!r}, and it is not known what that divides by. If "
            'it is the mean of all its losses, give reduction="none"; if not, write a loss function '
            "(model, batch) that returns samestep.Loss(sum, weight)."
        )
    bare = copy.deepcopy(criterion)
    bare.reduction = "none"
    return bare, _rows if reduction == "batchmean" else _MEANS[kind]


def _elements(_criterion: Any, _output: Tensor, _target: Tensor, losses: Tensor) -> float:
    return losses.numel()


def _rows(_criterion: Any, output: Tensor, _target: Tensor, _losses: Tensor) -> float:
    return output.shape[0]


def _elementwise(criterion: Any, output: Tensor, target: Tensor, losses: Tensor) -> float:
    """The number of elements, where no element belongs to two examples or to a place in the batch."""
    if output.ndim != target.ndim or output.shape[:1] != target.shape[:1]:
        raise LossError(
            f"{_name(criterion)} got outputs of shape {tuple(output.shape)} and targets of shape "
            f"{tuple(target.shape)}, which pairs each example with all the others: give both the same shape."
        )
    for name in ("weight", "pos_weight"):
        weight = getattr(criterion, name, None)
        if weight is not None and weight.ndim == output.ndim and weight.shape[0] > 1:
            raise LossError(
                f"`{name}` of {_name(criterion)} has shape {tuple(weight.shape)} for outputs of shape "
                f"{tuple(output.shape)}: it weighs places in the batch, and a rank sees only some of them. "
                "Let the data set return weights, and use them in a loss function."
            )
    return losses.numel()


def _class_weights(criterion: Any, output: Tensor, target: Tensor, _losses: Tensor) -> Tensor | float:
    """What the mean of NLLLoss and CrossEntropyLoss divides by.

    Class indices: the sum of w[target] over targets other than `ignore_index` (w = 1 without class weights;
    the same with label smoothing). Class probabilities: the number of targets, whatever their weights.
    """
    if target.is_floating_point():
        return output.numel() // max(1, output.shape[1 if output.ndim > 1 else 0])
    counted = target != criterion.ignore_index
    weights: Tensor = counted
    if criterion.weight is not None:
        # an ignored target need not be a class: look up class 0 for it, then leave it out
        weights = criterion.weight[torch.where(counted, target, 0)] * counted
    return weights.sum(dtype=torch.float64)


_MEANS: dict[type[nn.Module], Weight] = {
    nn.CrossEntropyLoss: _class_weights,
    nn.NLLLoss: _class_weights,
    nn.MSELoss: _elementwise,
    nn.L1Loss: _elementwise,
    nn.SmoothL1Loss: _elementwise,
    nn.HuberLoss: _elementwise,
    nn.BCELoss: _elementwise,
    nn.BCEWithLogitsLoss: _elementwise,
    nn.PoissonNLLLoss: _elementwise,
    nn.GaussianNLLLoss: _elementwise,
    nn.KLDivLoss: _elementwise,
    nn.SoftMarginLoss: _elementwise,
    nn.HingeEmbeddingLoss: _elementwise,
    nn.MarginRankingLoss: _elementwise,
    # one loss an example, whatever its class weights
    nn.MultiMarginLoss: _elements,
    nn.MultiLabelMarginLoss: _elements,
    nn.MultiLabelSoftMarginLoss: _elements,
    nn.CosineEmbeddingLoss: _elements,
}

# how criteria of several outputs take them
_ARRANGEMENTS: dict[type[nn.Module], Callable[[Sequence[Tensor], Any], tuple[Any, ...]]] = {
    nn.GaussianNLLLoss: lambda outputs, target: (outputs[0], target, *outputs[1:]),
    nn.CosineEmbeddingLoss: lambda outputs, target: (*outputs, target),
    nn.MarginRankingLoss: lambda outputs, target: (*outputs, target),
}


def _arguments(kind: type[nn.Module] | None, outputs: Any, target: Any) -> tuple[Any, ...]:
    """What a criterion is called with; one that is not torch's may take whatever the model returns."""
    if kind is None:
        return outputs, target
    several = kind in _ARRANGEMENTS
    values = outputs if several else (outputs,)
    if not isinstance(values, tuple | list) or not all(isinstance(value, Tensor) for value in values):
        raise LossError(
            f"The model returned {type(outputs).__name__}, but {kind.__name__} takes "
            f"{'a tuple of tensors' if several else 'a tensor'}: let the model return that, or write a loss "
            "function (model, batch) that returns samestep.Loss(sum, weight)."
        )
    return _ARRANGEMENTS[kind](values, target) if several else (outputs, target)


def _kind(criterion: Any) -> type[nn.Module] | None:
    """The criterion of the table that this is, unless a subclass computes something else."""
    own = (k for k in _MEANS if isinstance(criterion, k) and type(criterion).forward is k.forward)
    return next(own, None)


def _name(criterion: Any) -> str:
    return getattr(criterion, "__name__", None) or type(criterion).__name__


def _pick(batch: Any, key: Key, role: str) -> Any:
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        held = (
            f"a dict with {', '.join(map(repr, batch))}" if isinstance(batch, dict) else type(batch).__name__
        )
        size = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
        raise LossError(
            f"The {role} of a batch were looked for at {key!r}, but the batch is {held}{size}: "
            f"say where they are with supervised(…, {role}=…)."
        ) from error
