"""Modules: which models run forward, and what comes out of each of their modules."""

import warnings
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from samestep.observed import Call, Layer, Machine, Model, RandomState, Wrap
from samestep.probe.gradients import Gradients
from samestep.probe.naming import Known, Names, plain_name, unwrapped, wraps_of
from samestep.probe.states import States
from samestep.probe.summaries import bits_print, randomness, summary, tensors_in
from samestep.probe.watch import Watch

MOST_LAYERS = 1000
MOST_TENSORS = 5000


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
        self._thread = get_ident()
        self._handles: list[RemovableHandle] = []
        self._depth = 0
        self._clock_depth = 0
        self._model: Known | None = None
        self._inputs: tuple[str, ...] = ()
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
        if self._depth:
            self._depth += 1
            return
        # recomputed activations, and transforms of the data, are no forward passes of a model
        if self._watch.clock.phase in ("backward", "data"):
            return
        self._depth = 1
        # asked here, since nothing has gradients while we look
        has_gradients = torch.is_grad_enabled()
        with self._watch.looking("a model") as able:
            self._model = None
            self._inputs = ()
            if able:
                self._begin(module, inputs, has_gradients)
        self._clock_depth = self._watch.clock.enter("forward")

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._watch.is_on or get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        is_whole = self._depth == 0
        if is_whole:
            self._watch.clock.leave(self._clock_depth)
        watch, model = self._watch, self._model
        has_gradients = torch.is_grad_enabled()
        if model is None or not watch.is_full or not (is_whole or (module.training and has_gradients)):
            return
        with watch.looking("the output of a module") as able:
            # the model inside of a wrap has just been left, and the wrap stands for it
            if able and (is_whole or module is not model.root()):
                self._write(model, module, is_whole, has_gradients, output)

    def _begin(self, module: nn.Module, inputs: Any, has_gradients: bool) -> None:
        watch = self._watch
        known, root = self._names.model_of(module)
        self._model = known
        if any(True for _ in root.parameters()):
            watch.num_forward += 1
            watch.exchanges_in_backward = bool(getattr(module, "require_backward_grad_sync", False))
            watch.event("forward" if module.training else "evaluation")
        wraps = wraps_of(module)
        kinds = " ".join(wrap.kind for wrap in wraps)
        if kinds not in known.wrapped_in:
            known.wrapped_in.add(kinds)
            known.name_modules(root)
            self._names.name_tensors(known, root)
            watch.write(_described(watch.step, known, root, wraps), flush=True)
        if module.training and has_gradients:
            self._states.write_first(known, root)
            if watch.is_full:
                self._gradients.attend(root)
            if watch.is_looked_into and self._random_of != watch.step:
                self._random_of = watch.step
                watch.write(RandomState(step=watch.step, random=randomness()))
        if watch.is_full:
            tensors = tensors_in(inputs)
            self._inputs = tuple(bits_print(tensor) for tensor in tensors)
            if not self._is_described:
                self._is_described = True
                watch.write(_machine(next(root.parameters(), tensors[0] if tensors else None)))

    def _write(
        self, model: Known, module: nn.Module, is_whole: bool, has_gradients: bool, output: Any
    ) -> None:
        inner = unwrapped(module)
        name = model.modules.get(id(inner))
        if name is None:
            root = model.root()
            if root is not None:
                model.name_modules(root)
            name = model.modules.get(id(inner), "?")
        row = Call(
            step=self._watch.step,
            model=model.number,
            name=name,
            kind=type(inner).__name__,
            is_training=module.training,
            has_gradients=has_gradients,
            autocast=_autocast(output),
            will_exchange=getattr(module, "require_backward_grad_sync", None),
            inputs=self._inputs if is_whole else (),
            outputs=tuple(summary(tensor) for tensor in tensors_in(output)),
        )
        self._watch.write_some(row)


def _described(step: int, known: Known, root: nn.Module, wraps: tuple[Wrap, ...]) -> Model:
    norms, dropouts, tensors = [], [], []
    for name, module in root.named_modules():
        kind, name = type(module).__name__, plain_name(name)
        keeps = isinstance(getattr(module, "running_mean", None), Tensor)
        if keeps or isinstance(module, _NormBase) or (kind.endswith(("Norm", "Norm1d", "Norm2d", "Norm3d"))):
            norms.append(Layer(name=name, kind=kind, keeps_statistics=keeps))
        elif isinstance(module, _DropoutNd) or "Dropout" in kind or "DropPath" in kind:
            p = getattr(module, "p", None)
            dropouts.append(Layer(name=name, kind=kind, p=float(p) if isinstance(p, int | float) else None))
    for name, tensor in (*root.named_parameters(), *root.named_buffers()):
        needs = " gradient" if tensor.requires_grad else ""
        tensors.append(f"{plain_name(name)} {str(tensor.dtype)[6:]} {tuple(tensor.shape)}{needs}")
    return Model(
        step=step,
        model=known.number,
        kind=type(root).__name__,
        wraps=wraps,
        norms=tuple(norms[:MOST_LAYERS]),
        dropouts=tuple(dropouts[:MOST_LAYERS]),
        tensors=tuple(tensors[:MOST_TENSORS]),
    )


def _machine(tensor: Tensor | None) -> Machine:
    return Machine(
        torch=torch.__version__,
        num_threads=torch.get_num_threads(),
        device="unknown" if tensor is None else str(tensor.device),
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
        matmul_precision=torch.get_float32_matmul_precision(),
    )


def _autocast(output: Any) -> str | None:
    kinds = {tensor.device.type for tensor in tensors_in(output)} or {"cpu"}
    on = [kind for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]
    return str(torch.get_autocast_dtype(on[0])).removeprefix("torch.") if on else None
