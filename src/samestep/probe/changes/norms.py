"""Norms that are frozen: layers that keep statistics use and leave those that they have, in training too."""

from functools import cache
from types import FunctionType

from torch import Tensor, nn

from samestep.probe.changes.evaluating import Evaluating
from samestep.probe.statistics import own_statistics


class NormsFrozen(Evaluating):
    """Calls layers that keep statistics in evaluation mode.

    Besides those with a `running_mean`, these are all that have floating-point buffers of their own and look
    at `training`. A layer that uses the statistics of the batch in evaluation too stays as it is, and so does
    one with a `train` of its own, which the flag alone does not put into evaluation.
    """

    def __init__(self) -> None:
        super().__init__(keeps_statistics)


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a layer keeps statistics in training and uses them in evaluation."""
    if not module._buffers:
        return False
    if isinstance(module._buffers.get("running_mean"), Tensor):
        return True
    if type(module).train is not nn.Module.train:
        return False  # such as escnn's convolutions, which make their filter there
    # mypy takes the hash of the class for that of its modules
    return _looks_at_training(type(module)) and bool(own_statistics(module))  # type: ignore[arg-type]


@cache
def _looks_at_training(kind: type) -> bool:
    """Whether a method that a class has from itself, or from one below Module, names `training`."""
    for part in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for method in vars(part).values():
            if isinstance(method, FunctionType) and "training" in method.__code__.co_names:
                return True
    return False
