"""Steps and backward passes without torch's compiler do what torch's do, whoever looks on or changed them."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from samestep.train import uncompiled


def parameter() -> nn.Parameter:
    found = nn.Parameter(torch.ones(3))
    found.grad = torch.full((3,), 2.0)
    return found


def updated(optimizer: Optimizer) -> Tensor:
    (held,) = optimizer.param_groups[0]["params"]
    uncompiled.step(optimizer)
    return held.detach()


def test_it_is_the_step_of_the_optimizer() -> None:
    assert updated(SGD([parameter()], lr=0.25)).tolist() == [0.5] * 3


def test_hooks_of_one_and_of_all_are_called() -> None:
    seen: list[str] = []
    optimizer = SGD([parameter()], lr=0.25)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    handle = register_optimizer_step_post_hook(lambda *_: seen.append("all"))
    try:
        assert updated(optimizer).tolist() == [0.5] * 3
    finally:
        handle.remove()
    assert seen == ["before", "after", "all"]


def test_a_profiler_sees_it() -> None:
    optimizer = SGD([parameter()], lr=0.25)
    updated(optimizer)
    with torch.autograd.profiler.profile() as profile:
        updated(optimizer)
    assert "Optimizer.step#SGD.step" in [event.key for event in profile.key_averages()]


def twice(step: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that takes over the attributes of what it is around, as `wraps` does."""

    @wraps(step)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        step(*args, **kwargs)
        return step(*args, **kwargs)

    return stepped


class Decorated(SGD):
    step = twice(SGD.step)  # type: ignore[assignment]


class Own(SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        super().step()


@pytest.mark.parametrize("kind", [Decorated, Own])
def test_a_class_with_a_step_of_its_own(kind: type[SGD]) -> None:
    SGD([parameter()], lr=0.25)  # torch has hooked the class's step now
    assert updated(kind([parameter()], lr=0.25)).tolist() == [0.0] * 3


def test_a_schedule_and_anything_else_that_replaced_the_step_of_one() -> None:
    optimizer = SGD([parameter()], lr=0.25)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert updated(optimizer).tolist() == [0.5] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a schedule that has seen no step
        schedule.step()
    optimizer.step = twice(optimizer.step)  # type: ignore[method-assign]
    assert updated(optimizer).tolist() == pytest.approx([0.4] * 3)


LOOP = """
import json, sys
import torch
from torch import nn

if "early" in sys.argv:
    import torch._dynamo
import samestep

world = samestep.init()
model = world.replicate(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
if sys.argv[1] == "SGD":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
else:
    optimizer = getattr(torch.optim, sys.argv[1])(model.parameters())
optimizer.zero_grad()
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
called = model
for number, batch in enumerate(world.loader(torch.randn(40, 4), batch_size=8)):
    if number == 2 and "compiled" in sys.argv:
        called = torch.compile(model, backend="eager")
    with world.step(optimizer, schedule=schedule, clip_norm=1.0) as step:
        step.backward(called(batch).square().sum(), len(batch), penalty=model[0].weight.square().sum())
optimizer.load_state_dict(optimizer.state_dict())
optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})
disabled = getattr(torch.optim.Optimizer.add_param_group.__wrapped__, "__dynamo_disable", None)
print(json.dumps({
    "loaded": [name for name in ("torch._dynamo", "sympy") if name in sys.modules],
    "weights": [value.tolist() for value in model.state_dict().values()],
    "is_torchs": getattr(disabled, "__module__", "") != "samestep.train.uncompiled",
}))
"""
PLAIN = """
import sys
import torch

weight = torch.ones((), requires_grad=True)
optimizer = torch.optim.SGD([weight])
torch.autograd.backward([weight * 2], [torch.ones(())])
optimizer.step()
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def ran(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program, *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop"])
def test_the_compiler_is_not_loaded_and_the_bits_are_those_with_it(kind: str) -> None:
    without, early, compiled = (json.loads(ran(LOOP, kind, how)) for how in ("without", "early", "compiled"))
    assert without["loaded"] == [] and not without["is_torchs"]
    assert early["loaded"] == compiled["loaded"] == ["torch._dynamo", "sympy"]
    assert early["is_torchs"] and compiled["is_torchs"]
    assert without["weights"] == early["weights"] == compiled["weights"]


def test_torchs_own_loop_loads_it() -> None:
    assert ran(PLAIN) == "['torch._dynamo', 'sympy']\n"


def test_an_optimizer_that_is_differentiated_through_keeps_its_graph() -> None:
    start = torch.ones(3, requires_grad=True)
    moved = start.clone()
    optimizer = SGD([moved], lr=0.25, differentiable=True)
    moved.grad = start * 2
    uncompiled.step(optimizer)
    assert moved.grad_fn is not None
    (slope,) = torch.autograd.grad(moved.sum(), start)
    assert slope.tolist() == [0.5] * 3
    assert torch.is_grad_enabled()


def test_gradients_are_not_tracked_in_other_updates() -> None:
    optimizer = SGD([parameter()], lr=0.25, momentum=0.9)
    updated(optimizer)
    (state,) = optimizer.state.values()
    assert not state["momentum_buffer"].requires_grad


def test_a_backward_of_several_roots_and_one_that_somebody_replaced(monkeypatch: Any) -> None:
    def gradient(shape: tuple[int, ...]) -> list[float]:
        leaf = torch.ones(2, requires_grad=True)
        roots = [(leaf * 3).sum().reshape(shape), leaf.square().sum()]
        uncompiled.backward(roots, [torch.full(shape, 0.5), torch.tensor(2.0)])
        assert leaf.grad is not None
        return leaf.grad.tolist()

    assert gradient(()) == gradient((1,)) == [5.5] * 2
    seen = []
    original = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *args: (seen.append(1), original(*args)))
    assert gradient(()) == [5.5] * 2
    assert seen == [1]
