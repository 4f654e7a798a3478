"""Modules: which models run forward, and what comes out of each of their modules."""

import sys
import warnings
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from samestep.observed import Call, RandomState
from samestep.probe.describing import autocast_of, machine_row, model_row
from samestep.probe.generators import Generators
from samestep.probe.gradients import Gradients
from samestep.probe.naming import Known, Names, unwrapped, wraps_of
from samestep.probe.states import States
from samestep.probe.statistics import Before, Statistics
from samestep.probe.summaries import bits_print, row_prints, summary, tensors_in
from samestep.probe.watch import Watch


class _Open(NamedTuple):
    """A module whose forward pass is under way: its mode, and its statistics where they are looked at."""

    is_training: bool
    statistics: Before | None


class _Given(NamedTuple):
    """What a model was called with."""

    inputs: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    generators: Generators | None = None


class Modules:
    """Observes the calls of modules in the thread that installed it.

    A call from outside of any other module is that of a model. Replicas in other threads (DataParallel) are
    not looked into, nor is the inside of a compiled model, where hooks do not run one by one.
    """

    def __init__(self, watch: Watch, names: Names, gradients: Gradients, states: States) -> None:
        self._watch = watch
        self._names = names
        self._gradients = gradients
        self._states = states
        self._statistics = Statistics(watch)
        self._thread = get_ident()
        self._handles: list[RemovableHandle] = []
        self._open: list[_Open] = []
        self._clock_depth = 0
        self._model: Known | None = None
        self._given = _Given()
        self._is_described = False
        self._random_of = 0

    def install(self) -> None:
        # torch warns of hooks that the program knows nothing of; inside of a compiled model ours do nothing
        warnings.filterwarnings(
            "ignore", message="Using `torch.compile\\(module\\)` when there are global hooks"
        )
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._watch.is_on or get_ident() != self._thread:
            return
        if self._open:
            self._enter(module)
            return
        # recomputed activations, and transforms of the data, are no forward passes of a model
        if self._watch.clock.phase in ("backward", "data"):
            return
        # asked here, since nothing has gradients while we look
        has_gradients = torch.is_grad_enabled()
        with self._watch.looking("a model") as able:
            self._model = None
            self._given = _Given()
            if able:
                named = _named_inputs() if self._watch.is_full else {}
                self._begin(module, (inputs, named), has_gradients)
        # Lightning sets the mode of the model, and leaves that of its wrap as it may be
        self._enter(unwrapped(module))
        self._clock_depth = self._watch.clock.enter("forward")

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._watch.is_on or get_ident() != self._thread or not self._open:
            return
        is_training, statistics = self._open.pop()
        is_whole = not self._open
        if is_whole:
            self._watch.clock.leave(self._clock_depth)
        watch, model = self._watch, self._model
        if model is None or not watch.is_full:
            return
        if statistics is not None:
            with watch.looking("the statistics of a module"):
                inner = unwrapped(module)
                self._statistics.after(model.number, _name_in(model, inner), inner, statistics)
        has_gradients = torch.is_grad_enabled()
        # the model inside of a wrap has just been left, and the wrap stands for it
        if is_whole or (is_training and has_gradients and module is not model.root()):
            with watch.looking("the output of a module") as able:
                if able:
                    self._write(model, module, is_whole, is_training, has_gradients, output)

    def _enter(self, module: nn.Module) -> None:
        statistics = None
        if module._buffers and self._watch.is_full and self._model is not None:
            with self._watch.looking("the statistics of a module") as able:
                statistics = self._statistics.before(module) if able else None
        self._open.append(_Open(module.training, statistics))

    def _begin(self, module: nn.Module, inputs: Any, has_gradients: bool) -> None:
        watch = self._watch
        known, root = self._names.model_of(module)
        is_training = unwrapped(module).training
        self._model = known
        if any(True for _ in root.parameters()):
            watch.num_forward += 1
            watch.has_evaluated = watch.has_evaluated or not (is_training and has_gradients)
            watch.exchanges_in_backward = bool(getattr(module, "require_backward_grad_sync", False))
            watch.event("forward" if is_training else "evaluation")
        wraps = wraps_of(module)
        kinds = " ".join(wrap.kind for wrap in wraps)
        if kinds not in known.wrapped_in:
            known.wrapped_in.add(kinds)
            known.name_modules(root)
            self._names.name_tensors(known, root)
            watch.write(model_row(watch.step, known.number, root, wraps), flush=True)
        if is_training and has_gradients:
            self._states.write_first(known, root)
            if watch.is_full:
                self._gradients.attend(root)
            if watch.is_looked_into and self._random_of != watch.step:
                self._random_of = watch.step
                watch.write(RandomState(step=watch.step, random=Generators().described()))
        elif watch.is_full:
            self._states.write_evaluated(known, root)
        if watch.is_full:
            tensors = tensors_in(inputs)
            prints = tuple(bits_print(tensor) for tensor in tensors)
            self._given = _Given(prints, row_prints(tensors), Generators())
            if not self._is_described:
                self._is_described = True
                watch.write(machine_row(next(root.parameters(), tensors[0] if tensors else None)))

    def _write(
        self,
        model: Known,
        module: nn.Module,
        is_whole: bool,
        is_training: bool,
        has_gradients: bool,
        output: Any,
    ) -> None:
        inner = unwrapped(module)
        given = self._given if is_whole else _Given()
        row = Call(
            step=self._watch.step,
            model=model.number,
            name=_name_in(model, inner),
            kind=type(inner).__name__,
            is_training=is_training,
            has_gradients=has_gradients,
            autocast=autocast_of(output),
            will_exchange=getattr(module, "require_backward_grad_sync", None),
            inputs=given.inputs,
            outputs=tuple(summary(tensor) for tensor in tensors_in(output)),
            rows=given.rows,
            moved=given.generators.moved() if given.generators is not None else (),
        )
        self._watch.write_some(row)


def _name_in(model: Known, module: nn.Module) -> str:
    name = model.modules.get(id(module))
    if name is None:
        root = model.root()
        if root is not None:
            model.name_modules(root)
        name = model.modules.get(id(module), "?")
    return name


def _named_inputs() -> dict[str, Any]:
    """What a model was called with by name, which torch tells to no hook for all modules.

    It is looked up where torch keeps it while it calls such hooks; where it is not there, none is seen.
    """
    frame = sys._getframe(2)
    named = frame.f_locals.get("kwargs") if frame.f_code.co_filename == nn.modules.module.__file__ else None
    return named if isinstance(named, dict) else {}
