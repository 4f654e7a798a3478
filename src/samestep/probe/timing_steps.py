"""What steps are made of: models that are called, backward passes, and updates; each is a phase.

Only the outermost call of a module is looked at. What comes after the last node of a graph, before backward
returns, is a wrap that waits for other ranks.
"""

import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist  # noqa: TID251 (it is asked about, not used)
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from samestep.probe.describing import machine_row, model_row
from samestep.probe.naming import Known, Names, unwrapped, wraps_of
from samestep.probe.replacing import Replacements
from samestep.probe.timing_blocks import TimingWatch
from samestep.probe.timing_course import Course

_UNMET: Any = object()
_read = torch._C.TensorBase.item
"""As torch has it, whatever is put around it for the program."""


class Forwards:
    """Observes the calls of whole models in the thread that made it.

    Replaces `Module.__call__`: a hook for all modules would slow down each of them.
    """

    def __init__(self, watch: TimingWatch, names: Names, course: Course) -> None:
        self._watch = watch
        self._names = names
        self._course = course
        self._replaced = Replacements()
        self._thread = get_ident()
        self._is_inside = False
        self._is_described = False
        self._met: weakref.WeakKeyDictionary[nn.Module, Known | None] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        self._replaced.wrap(nn.Module, "__call__", self._around)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or torch.compiler.is_compiling() or get_ident() != self._thread:
                return original(module, *args, **kwargs)
            watch = self._watch
            # recomputed activations, and transforms of the data, are no forward passes of a model
            if not watch.is_on or watch.clock.phase in ("backward", "data"):
                return original(module, *args, **kwargs)
            self._is_inside = True
            try:
                self._look(module)
                depth = watch.clock.enter("forward")
                try:
                    return original(module, *args, **kwargs)
                finally:
                    watch.clock.leave(depth)
            finally:
                self._is_inside = False

        return call

    def _look(self, module: nn.Module) -> None:
        try:
            known = self._met.get(module, _UNMET)
            if known is _UNMET:
                known = self._meet(module)
            if known is None:
                return
            self._watch.num_forward += 1
            is_in_training_mode = unwrapped(module).training
            if is_in_training_mode and torch.is_grad_enabled():
                self._course.trains(known.number)
            else:
                self._course.evaluates(known.number, is_in_training_mode=is_in_training_mode)
        except Exception as error:
            self._watch.trouble("a model", error)

    def _meet(self, module: nn.Module) -> Known | None:
        """The model that a module belongs to, which is written down; None if it has no parameters."""
        with self._watch.looking("a model"):
            found, root = self._names.model_of(module)
            parameter = next(root.parameters(), None)
            self._met[module] = known = None if parameter is None else found
            if parameter is None or known is None:
                return None
            wraps = wraps_of(module)
            kinds = " ".join(wrap.kind for wrap in wraps)
            if kinds not in known.wrapped_in:
                known.wrapped_in.add(kinds)
                self._watch.write(model_row(self._watch.step, known.number, root, wraps))
            if not self._is_described:
                self._is_described = True
                self._watch.blocks.device = parameter.device
                self._watch.write(machine_row(parameter), flush=True)
            return known
        return None


class Backwards:
    """Observes `torch.autograd.backward`, and keeps the losses on which it is called.

    Of a loss that a GradScaler scaled, the one before is kept.
    """

    def __init__(self, watch: TimingWatch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._is_inside = False
        self._scaled: tuple[Tensor, Tensor] | None = None
        self._computed_s: float | None = None
        self.weight: Tensor | float = 1.0
        """How much the next loss counts among those of its step."""

    def install(self) -> None:
        self._replaced.wrap(torch.autograd, "backward", self._around)
        self._replaced.wrap(torch.amp.GradScaler, "scale", self._around_scale)

    def uninstall(self) -> None:
        self._replaced.undo()
        self._scaled = None

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            watch = self._watch
            if self._is_inside or not watch.is_awake:
                return original(*args, **kwargs)
            handle = self._look(args[0] if args else kwargs.get("tensors"))
            self._is_inside = True
            self._take_computed_s()
            depth = watch.clock.enter("backward")
            try:
                return original(*args, **kwargs)
            finally:
                self._is_inside = False
                if (computed_s := self._take_computed_s()) is not None:
                    watch.clock.turn("exchange", computed_s)
                watch.clock.leave(depth)
                if handle is not None:
                    handle.remove()

        return backward

    def _look(self, tensors: Any) -> RemovableHandle | None:
        self._watch.num_backward += 1
        try:
            loss = tensors if isinstance(tensors, Tensor) else next(iter(tensors))
            if loss.numel() == 1:
                self._keep(loss)
            if not (dist.is_available() and dist.is_initialized()):
                return None
            handle: RemovableHandle = loss.register_hook(self._begun)
        except Exception as error:
            self._watch.trouble("a loss", error)
            return None
        return handle

    def _keep(self, loss: Tensor) -> None:
        if self._scaled is not None and self._scaled[0] is loss:
            loss = self._scaled[1]
        self._scaled = None
        # the tensor is the program's, and may be changed in place later
        kept = _read(loss) if loss.is_cpu else loss.detach().clone()
        self._watch.blocks.losses.append((kept, self.weight))

    def _begun(self, gradient: Tensor) -> None:
        try:
            # these are called in turn once the graph is done, and a wrap asks for its own later than we do
            torch.autograd.Variable._execution_engine.queue_callback(self._computed)
        except Exception as error:
            self._watch.trouble("a backward pass", error)

    def _computed(self) -> None:
        self._computed_s = perf_counter()

    def _take_computed_s(self) -> float | None:
        """When the graph was done, if there was one since this was last asked."""
        computed_s, self._computed_s = self._computed_s, None
        return computed_s

    def _around_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if isinstance(outputs, Tensor) and isinstance(result, Tensor) and result is not outputs:
                self._scaled = result, outputs.detach()
            return result

        return scale


class Updates:
    """Ends a step after each call of an optimizer's `step`, if it is not inside of another's."""

    def __init__(self, watch: TimingWatch, course: Course) -> None:
        self._watch = watch
        self._course = course
        self._handles: list[RemovableHandle] = []
        self._under_way: list[tuple[int, int]] = []

    def install(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._watch.is_awake:
            # one that is here already was left by an exception
            self._leave(optimizer)
            self._under_way.append((id(optimizer), self._watch.clock.enter("update")))

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._watch.is_awake:
            return
        self._leave(optimizer)
        if self._under_way:
            return
        try:
            self._watch.next_step(self._course.end_step())
        except Exception as error:
            self._watch.trouble("a step", error)

    def _leave(self, optimizer: Any) -> None:
        for i, (number, depth) in enumerate(self._under_way):
            if number == id(optimizer):
                self._watch.clock.leave(depth)
                del self._under_way[i:]
                return
