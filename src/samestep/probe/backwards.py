"""Backwards: the losses on which backward is called."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from samestep.observed import Loss
from samestep.probe.callers import where
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

MOST_LOSSES = 64


class Backwards:
    """Observes `torch.autograd.backward`, which `Tensor.backward` calls too."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._replaced = Replacements()

    def install(self) -> None:
        self._replaced.wrap(torch.autograd, "backward", self._around)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            watch = self._watch
            if not watch.is_awake:
                return original(*args, **kwargs)
            with watch.looking("a loss") as able:
                watch.begin_backward()
                if able and watch.is_looked_into and watch.num_backward <= MOST_LOSSES:
                    self._write(args[0] if args else kwargs["tensors"])
            depth = watch.clock.enter("backward")
            try:
                return original(*args, **kwargs)
            finally:
                watch.clock.leave(depth)
                if watch.exchanges_in_backward and watch.last_gradient_s is not None:
                    # what comes after the last gradient is a wrap that waits for the other ranks
                    watch.clock.move(perf_counter() - watch.last_gradient_s, "backward", "exchange")

        return backward

    def _write(self, tensors: Any) -> None:
        many: list[Tensor] = [tensors] if isinstance(tensors, Tensor) else list(tensors)[:4]
        line = where()
        for tensor in many:
            row = Loss(
                step=self._watch.step,
                number=self._watch.num_backward,
                value=float(tensor.detach().item()) if tensor.numel() == 1 else None,
                dtype=str(tensor.dtype).removeprefix("torch."),
                num_elements=tensor.numel(),
                where=line,
            )
            self._watch.write(row)
