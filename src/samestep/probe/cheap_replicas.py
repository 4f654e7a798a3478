"""Replicas in the cheap mode: a print of all that an optimizer trains and of the statistics beside it.

Which model the parameters of an optimizer belong to is found once, among all modules that there are: no hook
has to follow their making, and copies of models are found as well.
"""

import gc
import weakref
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any

from torch import Tensor, nn

from samestep.observed import Layer, Model, Replica
from samestep.probe.cheap_parts import DIGITS, part_bounds
from samestep.probe.cheap_prints import tensor_sums
from samestep.probe.naming import plain_name, unwrapped
from samestep.probe.watch import Watch


class Replicas:
    """Takes prints of all trained models; each has the number of its optimizer, in order of first steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._trained: weakref.WeakKeyDictionary[Any, _Trained] = weakref.WeakKeyDictionary()
        self._numbers = count()

    def meet(self, optimizer: Any) -> int:
        """The number of an optimizer, whose model is looked at from now on."""
        trained = self._trained.get(optimizer)
        if trained is None:
            trained = self._trained[optimizer] = _Trained(next(self._numbers))
        return trained.number

    def write(self) -> None:
        """Write down all models as they are now."""
        watch = self._watch
        for optimizer, trained in list(self._trained.items()):
            tensors = trained.tensors(optimizer)
            if tensors is None:
                watch.write(trained.describe(watch.step, optimizer))
                tensors = trained.tensors(optimizer)
            if tensors:
                watch.write(_replica(watch.step, trained, tensors))


class _Trained:
    """What one optimizer trains: its parameters, and buffers of the smallest module that has all of them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.names = b""
        self._num_tensors: int | None = None
        self._beside: list[weakref.ref[nn.Module]] = []

    def tensors(self, optimizer: Any) -> list[Tensor] | None:
        """Those that are to be equal on all ranks; None if they have to be described first."""
        found = [*_whole_parameters(optimizer), *(tensor for _, tensor in self._buffers())]
        return found if len(found) == self._num_tensors else None

    def describe(self, step: int, optimizer: Any) -> Model:
        """Find the model anew; the names are in the order of `tensors`."""
        parameters = _whole_parameters(optimizer)
        root = _smallest_with({id(parameter) for parameter in parameters})
        names: dict[int, str] = {}
        inside: dict[int, str] = {}
        if root is not None:
            names = {id(tensor): plain_name(name) for name, tensor in root.named_parameters()}
            trained = {id(parameter) for parameter in parameters}
            places = list(_places(root, "", trained))
            inside = {id(module): plain_name(name) for name, module in places}
            self._beside = [weakref.ref(module) for _, module in places]
        texts = []
        for i, parameter in enumerate(parameters):
            needs = " gradient" if parameter.requires_grad else ""
            texts.append(f"{names.get(id(parameter), f'parameter{i}')} {_kind(parameter)}{needs}")
        norms: dict[str, Layer] = {}
        for module, tensor in self._buffers():
            name = next(key for key, value in module._buffers.items() if value is tensor)
            texts.append(f"{f'{inside[id(module)]}.{name}'.lstrip('.')} {_kind(tensor)}")
            if name.startswith("running_"):
                place = inside[id(module)]
                norms[place] = Layer(name=place, kind=type(module).__name__, keeps_statistics=True)
        self._num_tensors = len(texts)
        self.names = " ".join(text.partition(" ")[0] for text in texts).encode("utf-8", "backslashreplace")
        return Model(
            step=step,
            model=self.number,
            kind=type(root).__name__ if root is not None else "?",
            wraps=(),
            norms=tuple(norms.values()),
            dropouts=(),
            tensors=tuple(texts),
        )

    def _buffers(self) -> Iterator[tuple[nn.Module, Tensor]]:
        """Buffers that are saved with the model; others are caches that may differ."""
        for where in self._beside:
            module = where()
            if module is not None:
                for name, buffer in module._buffers.items():
                    if buffer is not None and name not in module._non_persistent_buffers_set:
                        yield module, buffer


def _replica(step: int, trained: _Trained, tensors: Sequence[Tensor]) -> Replica:
    sums = [number.to_bytes(8, "little") for number in tensor_sums(tensors)]
    bounds = part_bounds(len(tensors))
    parts = [blake2b(b"".join(sums[start:end]), digest_size=DIGITS // 2).hexdigest() for start, end in bounds]
    print_of_all = blake2b(b"".join([trained.names, *sums]), digest_size=8).hexdigest()
    return Replica(step=step, model=trained.number, print=print_of_all, parts="".join(parts))


def _whole_parameters(optimizer: Any) -> list[Tensor]:
    """The parameters of which every rank has all; those that are spread over ranks differ by intention."""
    return [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if not hasattr(parameter, "to_local")
        and type(parameter).__name__ != "FlatParameter"
        and not getattr(parameter, "tensor_model_parallel", False)
    ]


def _smallest_with(wanted: set[int]) -> nn.Module | None:
    """The smallest module that has all of these parameters, by their ids; None if there is none."""
    parents: dict[int, list[nn.Module]] = {}
    owners: list[nn.Module] = []
    # not isinstance: that would ask proxies of others what they stand for, and so wake them
    for module in (thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)):
        inside = vars(module)
        if any(id(parameter) in wanted for parameter in inside.get("_parameters", {}).values()):
            owners.append(module)
        if unwrapped(module) is module:
            for child in inside.get("_modules", {}).values():
                parents.setdefault(id(child), []).append(module)
    common: dict[int, nn.Module] | None = None
    for owner in owners:
        above = _above(owner, parents)
        common = above if common is None else {key: above[key] for key in common if key in above}
    return min((common or {}).values(), key=lambda module: sum(1 for _ in module.modules()), default=None)


def _above(module: nn.Module, parents: dict[int, list[nn.Module]]) -> dict[int, nn.Module]:
    found: dict[int, nn.Module] = {}
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if id(one) not in found:
            found[id(one)] = one
            waiting += parents.get(id(one), [])
    return found


def _places(module: nn.Module, name: str, trained: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model, but for parts of which no parameter is trained, as of averages or teachers."""
    own = [id(parameter) for parameter in module.parameters()]
    if own and trained.isdisjoint(own):
        return
    yield name, module
    for key, child in module.named_children():
        yield from _places(child, f"{name}.{key}".lstrip("."), trained)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
