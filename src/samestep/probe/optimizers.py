"""Optimizers: each step of each of them, whatever calls it."""

import functools
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from samestep.observed import Optimizer, OptimizerGroup
from samestep.probe.callers import where
from samestep.probe.gradients import Gradients, named
from samestep.probe.naming import Names
from samestep.probe.states import States
from samestep.probe.summaries import settings_of
from samestep.probe.watch import Watch
from samestep.record import is_kept

MOST_GROUPS = 64


class Optimizers:
    """Ends a step of the watch after each call of an optimizer's `step`.

    Of an optimizer that calls another's `step` inside of its own, only its own counts. A closure (LBFGS,
    Lightning) runs forward and backward inside of `step`: gradients are then looked at when it returns.
    """

    def __init__(self, watch: Watch, names: Names, gradients: Gradients, states: States) -> None:
        self._watch = watch
        self._names = names
        self._gradients = gradients
        self._states = states
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._count = count()
        self._handles: list[RemovableHandle] = []
        self._stepping: list[tuple[int, int]] = []

    def install(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        watch = self._watch
        if not watch.is_awake:
            return None
        # one that is here already was left by an exception
        under_way = [number for number, _ in self._stepping]
        if id(optimizer) in under_way:
            del self._stepping[under_way.index(id(optimizer)) :]
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        with watch.looking("an optimizer"):
            watch.event("update")
            number = self._number(optimizer)
            if watch.is_full and closure is None:
                self._gradients.write(number, optimizer.param_groups)
        self._stepping.append((id(optimizer), watch.clock.enter("update")))
        if not callable(closure):
            return None
        watched = self._watched(closure, optimizer)
        if len(args) > 1:
            return (args[0], watched, *args[2:]), kwargs
        return args, kwargs | {"closure": watched}

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        watch = self._watch
        if not watch.is_awake:
            return
        while self._stepping:
            number, depth = self._stepping.pop()
            watch.clock.leave(depth)
            if number == id(optimizer):
                break
        if self._stepping:
            return
        with watch.looking("the end of a step"):
            self._states.write_after_step()
        with watch.looking("a step"):
            was_full = watch.is_full
            watch.end_step(self._number(optimizer), optimizer.param_groups)
            if was_full and not watch.is_full:
                self._gradients.uninstall()

    def _watched(self, closure: Callable[[], Any], optimizer: Any) -> Callable[[], Any]:
        @functools.wraps(closure)
        def call() -> Any:
            result = closure()
            with self._watch.looking("gradients after a closure"):
                if self._watch.is_on and self._watch.is_full:
                    self._gradients.write(self._number(optimizer), optimizer.param_groups)
            return result

        return call

    def _number(self, optimizer: Any) -> int:
        number = self._numbers.get(optimizer)
        if number is None:
            number = self._numbers[optimizer] = next(self._count)
            groups = optimizer.param_groups[:MOST_GROUPS]
            names = iter([name for name, _ in named(self._names, number, groups)])
            described = tuple(
                OptimizerGroup(
                    parameters=tuple(next(names) for _ in group["params"]),
                    settings=settings_of({k: _plain(v) for k, v in group.items() if k != "params"}),
                )
                for group in groups
            )
            kind = type(optimizer).__name__
            step = self._watch.step
            row = Optimizer(step=step, optimizer=number, kind=kind, groups=described, where=where())
            if is_kept(number):
                self._watch.write(row, flush=True)
        return number


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return str(value) if isinstance(value, tuple) else value
