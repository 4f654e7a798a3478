"""Dropout that passes everything on: in functions, in modules, inside of attention and recurrent layers."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from samestep.probe.changes.evaluating import Evaluating
from samestep.probe.replacing import Replacements

_IN_FUNCTIONAL = (
    "alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", "rrelu",
)  # fmt: skip
_IN_TORCH = (
    "alpha_dropout", "alpha_dropout_", "dropout", "dropout_", "feature_alpha_dropout",
    "feature_alpha_dropout_", "feature_dropout", "feature_dropout_",
)  # fmt: skip
_NAMES = ("dropout", "droppath", "stochasticdepth", "dropblock")


class DropoutOff:
    """No function or layer of dropout drops anything, or draws a random number.

    Attention and recurrent layers of torch are told that their own is zero. Layers of others are known by
    their names; one that is not called dropout, and draws for itself, stays as it is.
    """

    def __init__(self) -> None:
        self._replaced = Replacements()
        self._layers = Evaluating(is_dropout)

    def install(self) -> None:
        for name in _IN_FUNCTIONAL:
            self._replaced.wrap(functional, name, _not_training)
        for name in _IN_TORCH:
            if name in vars(torch):
                self._replaced.wrap(torch, name, _without_training)
        self._replaced.wrap(functional, "scaled_dot_product_attention", _undropped)
        for kind in (nn.RNN, nn.LSTM, nn.GRU):
            self._replaced.wrap(kind, "forward", _unrolled_whole)
        self._layers.install()

    def uninstall(self) -> None:
        self._layers.uninstall()
        self._replaced.undo()


def is_dropout(module: nn.Module) -> bool:
    """Whether a layer drops something at random, as the name of its class or of one above it says."""
    # mypy takes the hash of the class for that of its modules
    return _is_called_so(type(module))  # type: ignore[arg-type]


@cache
def _is_called_so(kind: type) -> bool:
    return any(name in part.__name__.lower() for part in kind.__mro__ for name in _NAMES)


def _not_training(original: Callable[..., Any]) -> Callable[..., Any]:
    place = list(inspect.signature(original).parameters).index("training")

    def quiet(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            return original(*args[:place], False, *args[place + 1 :], **kwargs)
        return original(*args, **kwargs | {"training": False})

    return quiet


def _without_training(original: Callable[..., Any]) -> Callable[..., Any]:
    def quiet(input: Any, p: Any, train: Any) -> Any:
        return original(input, p, False)

    return quiet


def _undropped(original: Callable[..., Any]) -> Callable[..., Any]:
    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        # the mask comes first among the others, then the share that is dropped
        if len(args) > 1:
            return original(query, key, value, args[0], 0.0, *args[2:], **kwargs)
        return original(query, key, value, *args, **kwargs | {"dropout_p": 0.0})

    return attention


def _unrolled_whole(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
        own, layer.dropout = layer.dropout, 0.0
        try:
            return original(layer, *args, **kwargs)
        finally:
            layer.dropout = own

    return forward
