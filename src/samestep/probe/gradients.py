"""Gradients: of each parameter, before any exchange and as the optimizer finds them."""

import weakref
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from samestep.observed import Gradient, Part, Summary
from samestep.probe.naming import Names
from samestep.probe.summaries import summary
from samestep.probe.watch import Watch

_NUM_SAMPLED_OF_PART = 2


class _Local(NamedTuple):
    """What is known of a parameter's gradient since the last step."""

    num_backward: int = 0
    num_edits: int = 0
    summary: Summary | None = None
    gradient: weakref.ref[Tensor] | None = None
    version: int = 0
    parts: tuple[Part, ...] = ()

    @property
    def are_separate(self) -> bool:
        """Whether no backward pass added to what another had left."""
        return len(self.parts) == self.num_backward


class Gradients:
    """Keeps the latest local gradient of each parameter, and writes it when an optimizer uses it.

    The hooks run after a gradient was added to what the parameter had, and before DDP's own, which hand it to
    the exchange. If a program lets DDP exchange in each of several backward passes of one step, what the
    parameter had is the exchanged gradient of the passes before. The hooks go after the steps in full.
    """

    def __init__(self, watch: Watch, names: Names) -> None:
        self._watch = watch
        self._names = names
        self._attended: dict[int, weakref.ref[Tensor]] = {}
        self._handles: list[RemovableHandle] = []
        self._local: dict[str, _Local] = {}

    def install(self) -> None:
        """Nothing yet: parameters are attended to when their model first runs."""

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._attended.clear()

    def attend(self, root: nn.Module) -> None:
        """Look at the local gradients of a model's parameters from now on."""
        for parameter in root.parameters():
            known = self._attended.get(id(parameter))
            if parameter.requires_grad and (known is None or known() is not parameter):
                self._attended[id(parameter)] = weakref.ref(parameter)
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated))

    def write(self, optimizer: int, groups: list[dict[str, Any]]) -> None:
        """Write down the gradients of an optimizer's parameters, which it is about to use."""
        for name, parameter in named(self._names, optimizer, groups):
            local = self._local.pop(name, _Local())
            applied = None if parameter.grad is None else summary(parameter.grad, name)
            parts = local.parts if local.are_separate and self._watch.num_backward > 1 else ()
            for stage, found in (("local", local.summary), ("applied", applied)):
                row = Gradient(
                    step=self._watch.step,
                    optimizer=optimizer,
                    name=name,
                    stage=stage,
                    num_backward=local.num_backward,
                    summary=found,
                    num_edits=local.num_edits,
                    parts=parts if stage == "local" else (),
                )
                self._watch.write(row)

    def _accumulated(self, parameter: Tensor) -> None:
        watch = self._watch
        if not watch.is_awake or not watch.is_full:
            return
        with watch.looking("a local gradient") as able:
            name = self._names.name_of(parameter)
            if able and name is not None and parameter.grad is not None:
                before = self._local.get(name, _Local())
                gradient = parameter.grad
                is_same = before.gradient is not None and before.gradient() is gradient
                # adding to a gradient counts as one change; whoever else wrote to it made more
                is_edited = is_same and gradient._version > before.version + 1
                now = summary(gradient, name)
                part = Part(
                    backward=watch.num_backward,
                    mean=now.mean,
                    rms=now.rms,
                    sample=now.sample[:_NUM_SAMPLED_OF_PART],
                )
                self._local[name] = _Local(
                    before.num_backward + 1,
                    before.num_edits + is_edited,
                    now,
                    weakref.ref(gradient),
                    gradient._version,
                    before.parts if is_same else (*before.parts, part),
                )
        watch.last_gradient_s = perf_counter()


def named(names: Names, optimizer: int, groups: list[dict[str, Any]]) -> list[tuple[str, Tensor]]:
    """An optimizer's parameters with their names; by position for those that no model that ran has."""
    return [
        (names.name_of(parameter) or f"optimizer{optimizer}.group{i}.{j}", parameter)
        for i, group in enumerate(groups)
        for j, parameter in enumerate(group["params"])
    ]
