"""How a function may be traced by torch: typed forms of what torch leaves untyped."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.autograd.function import once_differentiable

__all__ = ["apply", "first_order", "untraced"]

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Keep `function` out of the graphs of torch.compile: an exchange between ranks must really happen."""
    return cast(F, torch.compiler.disable(function))


def first_order(function: F) -> F:
    """Refuse a second derivative through this backward, which would lack what other ranks add to it."""
    return cast(F, once_differentiable(function))


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Call an autograd function, as a part of the graph."""
    return cast(Any, function).apply(*arguments)
