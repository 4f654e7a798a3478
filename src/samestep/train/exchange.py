"""The exchange of gradients: each replaced by its sum over all ranks, while backward is still running.

Knows parameters and buckets; knows nothing of losses, weights or updates. The model is not wrapped: hooks
on the parameters tell when a gradient is ready. Buckets leave in one fixed order on every rank, whatever
order backward took, so that a parameter that some rank did not use cannot make ranks wait for each other.

A few other numbers can travel along. Meeting once more would cost a small model more than its gradients do.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from samestep.errors import ConfigError
from samestep.world import Pending, World

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20

# A number travels in two parts, the multiples of 4,096 and the rest, so that float32 has room for both: the
# sums of whole numbers are exact below 2³⁶ over 4,096 ranks, others are as good as float32.
_PART = 4096.0

Numbers = list[float] | Tensor
"""Plain numbers on the host, or one float64 tensor on a device, which nobody should wait for."""


class Bucket(Protocol):
    """Parameters whose gradients travel together; `missing` are the ids of those that are not ready yet."""

    parameters: list[Parameter]
    missing: set[int]
    pending: Pending | None

    def launch(self, world: World) -> None: ...

    def abandon(self) -> None: ...

    def finish(self) -> None: ...


class _Bucket:
    """Gradients that travel together, in one flat buffer.

    It ends with a count of users per parameter and, in a bucket with `seats`, two parts of other numbers.
    """

    def __init__(self, parameters: list[Parameter], seats: int = 0) -> None:
        self.parameters = parameters
        sizes = [*(parameter.numel() for parameter in parameters), len(parameters), 2 * seats]
        self.buffer = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        *parts, self.num_users, self.seats = self.buffer.split(sizes)
        self._gradients = self.buffer[: sum(sizes[:-1])]
        self.views = [view_of(part, p) for part, p in zip(parts, parameters, strict=True)]
        self._ids = {id(parameter) for parameter in parameters}
        self.missing = set(self._ids)
        self.pending: Pending | None = None

    def launch(self, world: World) -> None:
        ready = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if len(ready) == len(self.parameters):
            self.num_users.fill_(1)
        else:
            self._gradients.zero_()
            self.num_users[ready] = 1
        if ready:
            gradients = [self.parameters[i].grad for i in ready]
            torch._foreach_copy_([self.views[i] for i in ready], gradients)  # type: ignore[arg-type]
            # at once, so that backward can use the memory again for the gradients to come
            for i in ready:
                self.parameters[i].grad = self.views[i]
        self.pending = world.sum_(self.buffer, of_gradients=True)

    def abandon(self) -> None:
        if self.pending is not None:
            self.pending.wait()
        self.pending = None
        self.missing = set(self._ids)

    def finish(self) -> None:
        assert self.pending is not None
        self.pending.wait()
        self.pending = None
        self.missing = set(self._ids)
        unused = [i for i, parameter in enumerate(self.parameters) if parameter.grad is None]
        if unused:
            # a parameter that no rank used keeps no gradient, so that the optimizer passes over it
            users = self.num_users.tolist()
            for i in unused:
                if users[i] != 0:
                    self.parameters[i].grad = self.views[i]


def view_of(part: Tensor, parameter: Tensor) -> Tensor:
    """`part` in the shape of the parameter and in its memory layout, which autograd gives gradients too."""
    strides = torch.empty_like(parameter, device="meta").stride()
    return part.as_strided(parameter.shape, strides, part.storage_offset())


def refuse_sparse(parameter: Tensor) -> None:
    """Raise a ConfigError if the gradient of the parameter is sparse."""
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise ConfigError(
            f"A parameter of shape {tuple(parameter.shape)} has a sparse gradient, which cannot be "
            "exchanged; make its layer with sparse=False."
        )


def refuse_twice(parameter: Tensor) -> None:
    """Raise the ConfigError of a parameter whose gradient has left, and that got more of it."""
    raise ConfigError(
        f"A parameter of shape {tuple(parameter.shape)} got more gradient after its exchange began. "
        "Backward must reach each parameter once a turn: use activation checkpointing with "
        "use_reentrant=False, and no backward beside step.backward."
    )


def _plus(a: Numbers, b: Numbers) -> Numbers:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        device = a.device if isinstance(a, Tensor) else b.device  # type: ignore[union-attr]
        first, second = (torch.as_tensor(n, dtype=torch.float64, device=device) for n in (a, b))
        return first + second
    return [x + y for x, y in zip(a, b, strict=True)]


def in_parts(numbers: Numbers) -> Tensor:
    """The multiples of `_PART` in the numbers, then the rests; what is not finite has no rest."""
    if isinstance(numbers, Tensor):
        return torch.cat([numbers.div(_PART).floor_(), numbers.remainder(_PART).nan_to_num_(0.0)])
    pairs = [divmod(number, _PART) if math.isfinite(number) else (number, 0.0) for number in numbers]
    return torch.tensor([*(high for high, _ in pairs), *(low for _, low in pairs)], dtype=torch.float64)


def put_together(parts: Tensor, like: Numbers) -> Numbers:
    """What `in_parts` took apart, as the kind of numbers that `like` is."""
    if isinstance(like, Tensor):
        high, low = parts.double().chunk(2)
        return low + high * _PART
    values = parts.tolist()
    return [low + high * _PART for high, low in zip(values[: len(like)], values[len(like) :], strict=True)]


class Exchange:
    """Sums the gradients of `parameters` over the ranks of `world`.

    `add` before the backward of each turn and `end_turn` after it; `finish` when the last one is over: then
    every gradient is the sum over ranks, the same bits on all of them. `seats` is how many other numbers are
    taken along. In a world of one there is nothing to do and nothing is hooked.
    """

    def __init__(self, parameters: Sequence[Parameter], world: World, *, seats: int = 0) -> None:
        self.parameters = list(parameters)
        self._world = world
        self._seats: Tensor | None = None
        self._buckets: Sequence[Bucket] = self._make_buckets(seats) if world.size > 1 else []
        self._numbers: Numbers | None = None
        self._parts: Tensor | None = None
        self._pending: Pending | None = None
        self._is_running = False
        self._num_launched = 0
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, bucket))
            for bucket in self._buckets
            for parameter in bucket.parameters
        ]

    def unit(self, weight: Tensor | float) -> float:
        """A guess at the sum of weights of a first step, from its first turn; the same on all ranks."""
        share = self._world.share
        total = torch.as_tensor(weight, dtype=torch.float64).cpu()
        self._world.sum_(total, of_gradients=True).wait()
        return float(total) * (1 if share is None else share.turns) or 1.0

    def add(self, numbers: Numbers, *, is_last: bool) -> None:
        """Count the numbers of a turn; before its backward. All ranks have the same turns.

        The backward of the last turn may send gradients as they get ready.
        """
        self._numbers = numbers if self._numbers is None else _plus(self._numbers, numbers)
        if not is_last:
            return
        self._is_running = True
        if self._world.size > 1:
            self._send_numbers(self._numbers)

    def _send_numbers(self, numbers: Numbers) -> None:
        self._parts = in_parts(numbers)
        if self._seats is None:
            self._pending = self._world.sum_(self._parts, of_gradients=True)
        else:
            self._parts = self._seats.copy_(self._parts)

    def end_turn(self) -> None:
        """Gradients of further turns are added to those that are there."""

    def finish(self) -> Numbers:
        """Send what has not left yet, wait until all sums are there, and tell those of the numbers."""
        while self._num_launched < len(self._buckets):
            self._launch_next()
        for bucket in self._buckets:
            bucket.finish()
        if self._pending is not None:
            self._pending.wait()
        numbers = self._numbers
        assert numbers is not None
        totals = numbers if self._parts is None else put_together(self._parts, numbers)
        self._forget()
        return totals

    def abandon(self) -> None:
        """Forget an exchange under way, which its step did not finish."""
        if self._is_running:
            for bucket in self._buckets:
                bucket.abandon()
            if self._pending is not None:
                self._pending.wait()
        self._forget()

    def _forget(self) -> None:
        self._numbers = self._parts = self._pending = None
        self._is_running = False
        self._num_launched = 0

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _make_buckets(self, seats: int) -> Sequence[Bucket]:
        buckets = _with_seats(bucketed(self.parameters), seats)
        self._seats = next((bucket.seats for bucket in buckets if len(bucket.seats)), None)
        return buckets

    def _on_gradient(self, bucket: Bucket, parameter: Tensor) -> None:
        if not self._is_running:
            return
        refuse_sparse(parameter)
        if bucket.pending is not None:
            refuse_twice(parameter)
        bucket.missing.discard(id(parameter))
        while self._num_launched < len(self._buckets) and not self._buckets[self._num_launched].missing:
            self._launch_next()

    def _launch_next(self) -> None:
        self._buckets[self._num_launched].launch(self._world)
        self._num_launched += 1


def bucketed(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """Parameters in buckets, in the order in which backward is expected to fill them: the last ones first.

    A bucket has one dtype and device. The first one is small, so that the exchange starts early.
    """
    groups: list[list[Parameter]] = []
    num_bytes = 0
    for parameter in reversed(parameters):
        limit = _FIRST_BUCKET_BYTES if len(groups) <= 1 else _BUCKET_BYTES
        last = groups[-1][-1] if groups else None
        if (
            last is None
            or num_bytes >= limit
            or (last.dtype, last.device) != (parameter.dtype, parameter.device)
        ):
            groups.append([])
            num_bytes = 0
        groups[-1].append(parameter)
        num_bytes += parameter.numel() * parameter.element_size()
    return groups


def _with_seats(groups: list[list[Parameter]], seats: int) -> list[_Bucket]:
    """The buckets of the groups, of which the first with the precision for it has seats."""
    precise = (i for i, group in enumerate(groups) if group[0].dtype in (torch.float32, torch.float64))
    with_seats = next(precise, None)
    return [_Bucket(group, seats if i == with_seats else 0) for i, group in enumerate(groups)]
