"""Criteria: calls of the loss functions of torch.nn.functional, which the loss modules of torch make too."""

import inspect
import math
from collections.abc import Callable
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction, functional

from samestep.observed import Criterion
from samestep.probe.callers import where
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

_OF_CLASSES = {"cross_entropy", "linear_cross_entropy", "nll_loss"}
_WATCHED = (
    *sorted(_OF_CLASSES), "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss",
    "multilabel_soft_margin_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
)  # fmt: skip


class Criteria:
    """Observes the loss functions; one that another calls counts with it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._inside = local()

    def install(self) -> None:
        for name in _WATCHED:
            if name in vars(functional):
                self._replaced.wrap(functional, name, self._around)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def criterion(*args: Any, **kwargs: Any) -> Any:
            watch = self._watch
            is_seen = watch.is_awake and watch.is_looked_into and watch.clock.phase != "backward"
            if not is_seen or getattr(self._inside, "one", False):
                return original(*args, **kwargs)
            self._inside.one = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside.one = False
            with watch.looking("a loss function") as able:
                if able and isinstance(result, Tensor):
                    given = signature.bind(*args, **kwargs)
                    given.apply_defaults()
                    self._write(original.__name__, given.arguments, result)
            return result

        return criterion

    def _write(self, kind: str, given: dict[str, Any], result: Tensor) -> None:
        target = given.get("target", given.get("targets"))
        if not isinstance(target, Tensor):
            # a distance between inputs only, such as that of triplets
            target = next(value for value in given.values() if isinstance(value, Tensor))
        row = Criterion(
            step=self._watch.step,
            kind=kind,
            reduction=_reduction_of(given),
            num_targets=_num_targets(kind, target, given),
            num_rows=target.shape[0] if target.ndim else 1,
            has_gradients=result.requires_grad,
            where=where(),
        )
        self._watch.write_some(row)


def _reduction_of(given: dict[str, Any]) -> str:
    old = given.get("size_average"), given.get("reduce")
    if old != (None, None):
        return str(_reduction.legacy_get_string(*old, emit_warning=False))
    return str(given.get("reduction", "mean"))


def _num_targets(kind: str, target: Tensor, given: dict[str, Any]) -> int:
    if kind not in _OF_CLASSES:
        values = given.get("input")
        shape = target.shape
        if isinstance(values, Tensor) and kind not in ("ctc_loss", "multi_margin_loss"):
            shape = torch.broadcast_shapes(shape, values.shape)
        return math.prod(shape)
    if target.is_floating_point():
        # probabilities of classes, which are the second dimension, or the only one
        num_classes = target.shape[1] if target.ndim > 1 else target.shape[0]
        return target.numel() // max(num_classes, 1)
    ignored = given.get("ignore_index", -100)
    return int((target != ignored).sum())
