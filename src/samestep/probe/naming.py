"""Naming: which model a module belongs to, and the names of its parts, whatever it is wrapped in."""

import weakref
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from samestep.observed import Wrap
from samestep.probe.summaries import settings_of

_WRAPPERS = (DistributedDataParallel, DataParallel)
_WRAPPING_NAMES = ("FullyShardedDataParallel", "OptimizedModule")
_IN_NAMES = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


@dataclass(eq=False)
class Known:
    """A model that was called: its number, the wraps it was seen in, and names by identity of its modules."""

    number: int
    root: "weakref.ref[nn.Module]"
    wrapped_in: set[str] = field(default_factory=set)
    modules: dict[int, str] = field(default_factory=dict)

    def name_modules(self, root: nn.Module) -> None:
        self.modules = {id(module): plain_name(name) for name, module in root.named_modules()}


class Names:
    """Knows the parents of modules from the moment they are joined, and so the model that any belongs to.

    Lightning calls the parts of a model on one rank, and the whole on several: both have to be named alike.
    """

    def __init__(self) -> None:
        self._parents: dict[int, tuple[weakref.ref[nn.Module], weakref.ref[nn.Module]]] = {}
        self._models: dict[int, Known] = {}
        self._tensors: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._numbers = count()
        self._handle: RemovableHandle | None = None

    def install(self) -> None:
        self._handle = register_module_module_registration_hook(self._joined)

    def uninstall(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    @property
    def models(self) -> list[tuple[Known, nn.Module]]:
        """The models that were called and still exist."""
        alive = ((known, known.root()) for known in self._models.values())
        return [(known, root) for known, root in alive if root is not None]

    def model_of(self, module: nn.Module) -> tuple[Known, nn.Module]:
        """The model that a module called from outside belongs to, known by number from now on."""
        root = self._top(unwrapped(module))
        known = self._models.get(id(root))
        if known is None or known.root() is not root:
            known = self._models[id(root)] = Known(next(self._numbers), weakref.ref(root))
            known.name_modules(root)
        return known, root

    def name_tensors(self, known: Known, root: nn.Module) -> None:
        """Give names to the parameters of a model, unless they have some."""
        for name, tensor in root.named_parameters():
            if self.name_of(tensor) is None:
                prefix = f"model{known.number}." if known.number else ""
                self._tensors[id(tensor)] = weakref.ref(tensor), prefix + plain_name(name)

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a parameter, or None if no model that was called has it."""
        entry = self._tensors.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def _joined(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is not None and not _is_wrapper(parent):
            entry = self._parents.get(id(child))
            if entry is None or entry[0]() is not child or entry[1]() is None:
                key = id(child)
                gone = weakref.ref(child, lambda _: self._parents.pop(key, None))
                self._parents[key] = gone, weakref.ref(parent)

    def _top(self, module: nn.Module) -> nn.Module:
        seen = {id(module)}
        while (entry := self._parents.get(id(module))) is not None and entry[0]() is module:
            parent = entry[1]()
            # a child that was taken out, or put into another place since, has no parent there
            if parent is None or id(parent) in seen or all(c is not module for c in parent.children()):
                break
            module = parent
            seen.add(id(module))
        return module


def plain_name(name: str) -> str:
    """A name without the segments that wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _IN_NAMES)


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside of any number of wraps."""
    while _is_wrapper(module):
        inner = getattr(module, "_orig_mod", None) or module.module
        if not isinstance(inner, nn.Module) or inner is module:
            break
        module = inner
    return module


def wraps_of(module: nn.Module) -> tuple[Wrap, ...]:
    """The wraps around a model, from the outside."""
    found = []
    while _is_wrapper(module):
        hooks: list[Any] = getattr(module, "_comm_hooks", [])
        settings = settings_of(module)
        if hooks:
            settings["comm_hooks"] = ", ".join(getattr(hook[0], "__name__", "?") for hook in hooks)
        found.append(Wrap(kind=type(module).__name__, settings=settings))
        inner = getattr(module, "_orig_mod", None) or module.module
        if not isinstance(inner, nn.Module) or inner is module:
            break
        module = inner
    return tuple(found)


def _is_wrapper(module: nn.Module) -> bool:
    return isinstance(module, _WRAPPERS) or type(module).__name__ in _WRAPPING_NAMES
