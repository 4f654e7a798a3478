"""How a function may be traced by torch: typed forms of what torch leaves untyped."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch.autograd.function import once_differentiable

__all__ = ["apply", "first_order", "keep_out_of_graphs", "untraced"]

F = TypeVar("F", bound=Callable[..., Any])


class _Cell:
    """Holds a function that may be exchanged for another later."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_disabled = False


_cells: list[_Cell] = []


def untraced(function: F) -> F:
    """Keep `function` out of the graphs of torch.compile: an exchange between ranks must really happen.

    It takes effect with `keep_out_of_graphs`, since torch's way of saying so loads its whole compiler, for a
    second or more.
    """
    cell = _Cell(function)
    _cells.append(cell)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return cell.function(*arguments, **named)

    return cast(F, call)


def keep_out_of_graphs() -> None:
    """Make `untraced` effective if torch's compiler is loaded; to be called before a model runs."""
    if "torch._dynamo" in sys.modules:
        for cell in _cells:
            if not cell.is_disabled:
                cell.function = torch.compiler.disable(cell.function)
                cell.is_disabled = True


def first_order(function: F) -> F:
    """Refuse a second derivative through this backward, which would lack what other ranks add to it."""
    return cast(F, once_differentiable(function))


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Call an autograd function, as a part of the graph."""
    return cast(Any, function).apply(*arguments)
