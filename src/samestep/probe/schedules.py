"""Schedules: what acts between backward and update: learning-rate schedulers, clipping, loss scales."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler

from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch


class Schedules:
    """Observes schedulers of torch and of subclasses that call them, clipping functions and GradScaler."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._depth = 0

    def install(self) -> None:
        kinds = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type)]
        for kind in kinds:
            if issubclass(kind, lr_scheduler.LRScheduler) and "step" in vars(kind):
                self._replaced.wrap(kind, "step", self._around_schedule)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._replaced.wrap(clip_grad, name, self._around_clip, torch.nn.utils)
        self._replaced.wrap(torch.amp.GradScaler, "step", self._around_scaled_step)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around_schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            # a scheduler sets its first rate by a step of its own, before it has counted any
            is_first = getattr(scheduler, "_step_count", None) == 0
            if not self._watch.is_awake or self._depth or is_first:
                return original(scheduler, *args, **kwargs)
            self._watch.num_scheduler_steps += 1
            self._watch.event("schedule")
            self._depth += 1
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                self._depth -= 1

        return step

    def _around_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            watch = self._watch
            if watch.is_awake:
                with watch.looking("clipping") as able:
                    limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
                    seen = able and watch.is_looked_into and isinstance(result, torch.Tensor)
                    watch.clipped(
                        original.__name__,
                        float("nan") if limit is None else float(limit),
                        float(result.detach().item()) if seen else None,
                    )
            return result

        return clip

    def _around_scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            watch = self._watch
            if not watch.is_awake:
                return original(scaler, *args, **kwargs)
            if watch.is_looked_into:
                with watch.looking("a loss scale") as able:
                    watch.scale = float(scaler.get_scale()) if able else None
            before = watch.step
            result = original(scaler, *args, **kwargs)
            if watch.step == before:
                watch.num_skipped += 1
                watch.event("skipped update")
            return result

        return step
