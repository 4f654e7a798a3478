"""What a step saw over all ranks, read when somebody asks and not before."""

import math

from torch import Tensor

from samestep import phase
from samestep.device import Readback
from samestep.train.exchange import Numbers


class Totals:
    """Sums over all ranks of what one step saw.

    Reading them waits until the device has come to the end of that step, and no longer.
    """

    __slots__ = ("_grad_norm", "_values")

    def __init__(self, values: Numbers, grad_norm: Tensor | None) -> None:
        self._values = Readback(values) if isinstance(values, Tensor) else values
        self._grad_norm = None if grad_norm is None else Readback(grad_norm)

    def read(self) -> tuple[float, float, bool]:
        """Sum of losses, sum of weights, and whether any rank wished to stop."""
        values = self._values
        if isinstance(values, Readback):
            with phase.waiting():
                values = values.read()
        loss_sum, weight, wishes = values
        return loss_sum, weight, wishes > 0

    @property
    def loss(self) -> float:
        """The loss of the step, without the penalty: sum of losses over sum of weights."""
        loss_sum, weight, _ = self.read()
        return loss_sum / weight if weight else math.nan

    @property
    def grad_norm(self) -> float | None:
        """The norm of the whole gradient before clipping; None where nothing was clipped."""
        return None if self._grad_norm is None else float(self._grad_norm.read())
