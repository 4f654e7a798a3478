"""The exchange of gradients where each rank updates its slice alone: sums go to owners only.

The same hooks, buckets and order as in `exchange.py`. What a rank holds afterwards is the gradient of its
pieces; the model's parameters have none. Afterwards `slices.hand_out` makes the weights whole on all ranks.
"""

from collections.abc import Sequence

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from samestep.errors import ConfigError
from samestep.train.exchange import Exchange, Numbers, bucketed, in_parts, put_together
from samestep.train.slices import SliceBucket, Slices
from samestep.world import World


class SlicedExchange(Exchange):
    """Sums the gradients of this rank's slice of `parameters` over the ranks of `world`."""

    _buckets: list[SliceBucket]

    def __init__(self, parameters: Sequence[Parameter], world: World, optimizer: Optimizer) -> None:
        super().__init__(parameters, world)
        self.slices = Slices(self._buckets)
        self._handles.append(optimizer.register_state_dict_pre_hook(self._refuse_state_dict))

    def finish(self) -> Numbers:
        """Send what has not left yet, give pieces their gradients, and tell the sums of the numbers."""
        while self._num_launched < len(self._buckets):
            self._launch_next()
        numbers = self._numbers
        assert numbers is not None
        parts = in_parts(numbers)
        unused = {id(parameter) for parameter in self.parameters if parameter.grad is None}
        users = [float(id(parameter) not in unused) for parameter in self.parameters]
        table = torch.cat([parts, torch.tensor(users, dtype=parts.dtype, device=parts.device)])
        self._world.sum_(table, of_gradients=True).wait()
        if unused:
            # a parameter that no rank used keeps no gradient, so that the optimizer passes over it
            counts = table[len(parts) :].tolist()
            unused = {id(p) for p, count in zip(self.parameters, counts, strict=True) if count == 0}
        for bucket in self._buckets:
            bucket.finish()
            bucket.follow()
            for piece in bucket.pieces:
                piece.held.grad = None if id(piece.parameter) in unused else bucket.gradient_of(piece)
        for parameter in self.parameters:
            parameter.grad = None
        totals = put_together(table[: len(parts)], numbers)
        self._forget()
        return totals

    def _refuse_state_dict(self, optimizer: Optimizer) -> None:
        raise ConfigError(
            f"optimizer.state_dict() was called, but each of {self._world.size} ranks holds a slice of the "
            "state only. Save it with world.checkpoints(…), which puts the slices together, or have every "
            "rank make the whole update: world.step(…, update='whole')."
        )

    def _make_buckets(self, seats: int) -> list[SliceBucket]:
        return [SliceBucket(group, self._world) for group in bucketed(self.parameters)]

    def _send_numbers(self, numbers: Numbers) -> None:
        """They wait for the end of backward, when it is known which parameters were used."""
