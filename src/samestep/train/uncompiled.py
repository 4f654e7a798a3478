"""Uncompiled: training without torch's compiler, for as long as nobody compiles.

torch's optimizers load the whole compiler when they are made, only to tell it to keep away, and do so once
more when they step; a backward pass that is given a gradient loads its algebra. That is a second of every
start and 80 MB of every rank. While the compiler is not loaded there is nobody to keep away: what torch has
put around these functions is then left out. From the moment that anything loads it, as `torch.compile` does,
all is as torch has it. So it is where hooks, profilers, subclasses or somebody's own wrapper look on.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import graph
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

_COMPILER = "torch._dynamo"
_DISABLED = "__dynamo_disable"
"""Where `torch._disable_dynamo` keeps, on a function, what is to be called in its place."""
_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def keep_compiler_out() -> None:
    """Have optimizers that are made from now on not load the compiler."""
    for name in _METHODS:
        method = getattr(Optimizer, name)
        function = getattr(method, "__wrapped__", None)
        if function is not None and not hasattr(function, _DISABLED):
            setattr(function, _DISABLED, _while_unloaded(function, method))


def _while_unloaded(function: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER not in sys.modules:
            return function(*args, **kwargs)
        delattr(function, _DISABLED)  # torch then puts there what it would have put at first
        return method(*args, **kwargs)

    return call


# what torch puts around the `step` of every class of optimizers, and around that of most of its own: all that
# were made by the same function share one code
_HOOKED = cast(Any, Optimizer.profile_hook_step(keep_compiler_out)).__code__
_GRADLESS = cast(Any, torch_optimizer._use_grad_for_differentiable(keep_compiler_out)).__code__


def step(optimizer: Optimizer) -> None:
    """`optimizer.step()`."""
    outer = type(optimizer).step
    own = vars(optimizer).get("step")
    is_counted = hasattr(own, "_wrapped_by_lr_sched") and getattr(own, "__wrapped__", None) is outer
    is_plain = _code(outer) is _HOOKED and (own is None or is_counted)
    if not is_plain or sees_gradients(optimizer) or torch._C._autograd._profiler_enabled():
        optimizer.step()
        return
    if is_counted:  # all that a schedule's wrapper does: without it, the schedule would warn
        optimizer._opt_called = True  # type: ignore[attr-defined]
    # marking every update for a profiler takes longer than a small one
    inner = cast(Any, outer).__wrapped__
    if _COMPILER in sys.modules or _code(inner) is not _GRADLESS:
        inner(optimizer)
        return
    with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
        inner.__wrapped__(optimizer)


def zero_grad(optimizer: Optimizer) -> None:
    """`optimizer.zero_grad()`; torch's own costs a tiny step as much as its update, a user's is called."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(optimizer):
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def backward(roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
    """`torch.autograd.backward(roots, seeds)`."""
    code = _code(torch.autograd.backward)
    # a wrapper may have been there before this module was: by its file it is told, whatever it is called
    is_torchs = code is not None and code.co_filename == torch.autograd.__file__
    is_plain = is_torchs and not torch._C._are_functorch_transforms_active()
    if is_plain and all(type(root) is Tensor and root.dim() == 0 for root in roots):
        graph._engine_run_backward(
            tuple(roots), tuple(seeds), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
    else:
        torch.autograd.backward(roots, seeds)


def sees_gradients(optimizer: Optimizer) -> bool:
    """Whether hooks, of this optimizer or of all, look on when it steps."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    )


def _code(function: Any) -> Any:
    return getattr(function, "__code__", None)
