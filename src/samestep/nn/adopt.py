"""Changing the class of a module in place, so that everything else about it stays.

Parameters, buffers, hooks, the keys of `state_dict`, references held elsewhere and `isinstance` all survive.
The new class stands in the method resolution order directly before the one that it replaces, so that a
user's subclass that calls `super().forward(x)` reaches it. Knows nothing of what the classes do.
"""

import functools
import types
from collections.abc import Mapping
from typing import Any

from torch import nn

__all__ = ["adopt", "mix_in", "qualified_name"]


def adopt(module: nn.Module, replacements: Mapping[type, type]) -> None:
    """Replace the nearest class of `module` that `replacements` knows; one already replaced stays."""
    kind: type = type(module)
    module.__class__ = _replaced(kind, tuple(replacements.items()))


def mix_in(module: nn.Module, base_name: str, mixin: type) -> None:
    """Put `mixin` before the class called `base_name` among those of `module`."""
    base = next(kind for kind in type(module).__mro__ if qualified_name(kind) == base_name)
    adopt(module, {base: _mixed(base, mixin)})


def qualified_name(kind: type) -> str:
    """The name of a class with that of its module, as an import would spell it."""
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _mixed(base: type, mixin: type) -> type:
    return _class(f"Synchronised{base.__name__.lstrip('_')}", (mixin, base), {"__module__": mixin.__module__})


@functools.cache
def _replaced(kind: type, replacements: tuple[tuple[type, type], ...]) -> type:
    known = dict(replacements)
    if any(issubclass(kind, ours) for ours in known.values()):
        return kind
    if kind in known:
        return known[kind]
    ours = next(known[base] for base in kind.__mro__ if base in known)
    attributes: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    final = getattr(kind, "cls_to_become", None)
    if final is not None:
        # a lazy module changes its own class when it first sees data
        attributes["cls_to_become"] = _replaced(final, replacements)
    return _class(kind.__name__, (kind, ours), attributes)


def _class(name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> type:
    return types.new_class(name, bases, exec_body=lambda body: body.update(attributes))
