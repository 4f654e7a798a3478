"""The update: what becomes of the summed gradients, on all parameters or on this rank's slice of them.

Each element is treated by itself by most optimizers. Then ranks need not all do the same: each updates its
slice and hands out the weights, which moves the bytes that summing whole gradients would, while the work of
the update and the optimizer's memory are divided by the number of ranks.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, optim
from torch.amp import GradScaler
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from samestep.findings import Finding
from samestep.train import uncompiled
from samestep.train.slice_state import cut_states
from samestep.train.slices import Slices, is_dense
from samestep.world import World

Update = Literal["whole", "sharded", "auto"]
UPDATES: tuple[Update, ...] = ("whole", "sharded", "auto")

_WORTH_BYTES = 8 << 20
"""Parameters of fewer bytes are updated before anybody could be told what to leave out."""

# Of torch's own: what they do to an element depends on that element, its gradient and state, and on settings.
# Not LBFGS, Adafactor and Muon, which look at whole tensors; of other classes nothing is known.
_ELEMENTWISE: set[type[Optimizer]] = {
    optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam,
    optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD,
}  # fmt: skip


def why_whole(optimizer: Optimizer, parameters: Sequence[Parameter], world: World) -> str | None:
    """What keeps ranks from updating a slice each, as a clause; None if nothing does."""
    if type(optimizer) not in _ELEMENTWISE:
        return f"{type(optimizer).__name__} is not known to treat every element of a parameter by itself"
    if world.shards is not None:
        return "in bitwise mode every rank makes the whole update"
    if uncompiled.sees_gradients(optimizer):
        return "a hook on optimizer.step would see a slice in place of the parameters"
    gaps = [tuple(parameter.shape) for parameter in parameters if not is_dense(parameter)]
    if gaps:
        return f"a parameter of shape {gaps[0]} has gaps in memory"
    return None


def pays(parameters: Sequence[Parameter]) -> bool:
    """Whether there is enough to update that ranks should divide it up."""
    return sum(parameter.nbytes for parameter in parameters) >= _WORTH_BYTES


def cannot_be_sharded(reason: str) -> Finding:
    """What is said where the sharded update was asked for and is not made."""
    return Finding(
        cause="update-not-sharded",
        message=f"The update was to be sharded, but every rank makes the whole of it: {reason}.",
        evidence={"reason": reason},
        fix="Say update: whole, or take one of torch's elementwise optimizers, such as AdamW or SGD.",
    )


def apply(
    optimizer: Optimizer,
    parameters: Sequence[Parameter],
    slices: Slices | None,
    world: World,
    *,
    factor: Tensor | float,
    clip_norm: float | None,
    scaler: GradScaler | None,
) -> Tensor | None:
    """Multiply the gradients by `factor`, unscale and clip them, and update; returns the norm, if clipped."""
    held = parameters if slices is None else slices.held
    if slices is not None:
        cut_states(optimizer, slices)
    with nullcontext() if slices is None else slices.in_place_of_parameters(optimizer):
        _multiply(held, factor)
        if scaler is not None:
            scaler.unscale_(optimizer)
            if slices is not None:
                _agree_on_overflow(scaler, optimizer, world)
        norm = None
        if clip_norm is not None:
            norm = clip_grad_norm_(held, clip_norm) if slices is None else _clip(held, clip_norm, world)
        if scaler is None:
            uncompiled.step(optimizer)
        else:
            scaler.step(optimizer)
            scaler.update()
    if slices is not None:
        slices.hand_out()
    return norm


def _multiply(held: Sequence[Parameter], factor: Tensor | float) -> None:
    if not isinstance(factor, Tensor) and factor == 1.0:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for parameter in held:
        if parameter.grad is not None:
            by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for dtype, gradients in by_dtype.items():
        torch._foreach_mul_(gradients, factor.to(dtype) if isinstance(factor, Tensor) else factor)


def _clip(held: Sequence[Parameter], clip_norm: float, world: World) -> Tensor:
    """Clip by the norm of all slices: the root of the sum of their squares."""
    own = get_total_norm([piece.grad for piece in held if piece.grad is not None])
    square = own.to(world.device, torch.float64).square()
    world.sum_(square, of_gradients=True).wait()
    norm = square.sqrt().to(own.dtype)
    clip_grads_with_norm_(held, clip_norm, norm)
    return norm


def _agree_on_overflow(scaler: GradScaler, optimizer: Optimizer, world: World) -> None:
    """Have all ranks skip the update if the gradient of any slice is infinite or not a number."""
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    for flag in found.values():
        world.sum_(flag, of_gradients=True).wait()
