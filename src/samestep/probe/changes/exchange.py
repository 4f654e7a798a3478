"""Exchange off: ranks go on with what they have, in training steps; everything else between them stays.

Set-up, evaluation, barriers and whatever travels as an object are left as they are. All ranks leave out the
same, so that none waits for another.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist  # noqa: TID251 (it is changed, not used)
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from samestep.probe.arrival import Arrival
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

_WRAP_FLAGS = ("require_backward_grad_sync", "require_forward_param_sync")


class ExchangeOff:
    """DDP is as if in `no_sync`, and collectives from a backward pass to its update are over at once.

    In a step with several forward passes, those in a forward pass stay. Those in a backward pass stay too,
    unless norms are local: nothing else tells the statistics of a norm from gradients there.
    """

    def __init__(self, watch: Watch, *, are_norms_local: bool) -> None:
        self._watch = watch
        self._are_norms_local = are_norms_local
        self._replaced = Replacements()
        self._arrival = Arrival("samestep.world", self._world_arrived)
        self._is_kept = False
        self._after: tuple[int, int] | None = None
        """Step and number of forward passes of the last backward pass."""

    def install(self) -> None:
        self._replaced.wrap(torch.autograd, "backward", self._around_backward)
        self._replaced.wrap(torch.amp.GradScaler, "step", self._around_scaled_step)
        self._arrival.install()
        if dist.is_available():
            home = dist.distributed_c10d
            for name, (do, place) in _INSTEAD.items():
                self._replaced.wrap(home, name, self._around(do, place), dist)
            for name in _KEPT:
                self._replaced.wrap(home, name, self._around_kept, dist)
            for name in _WRAP_FLAGS:
                # found before what a wrap sets for itself
                setattr(DistributedDataParallel, name, property(lambda wrap: False, lambda wrap, value: None))

    def uninstall(self) -> None:
        self._arrival.uninstall()
        self._replaced.undo()
        for name in _WRAP_FLAGS:
            if name in vars(DistributedDataParallel):
                delattr(DistributedDataParallel, name)

    def _world_arrived(self) -> None:
        # it is not loaded from here: it may be what loads torch, and be half loaded now
        world = sys.modules["samestep.world"].World
        self._replaced.wrap(world, "sum_", self._around_sum)
        self._replaced.wrap(world, "post", self._around_post)

    @property
    def _is_exchanging(self) -> bool:
        return not self._is_kept and self._after == (self._watch.step, self._watch.num_forward)

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            now = self._watch.step, self._watch.num_forward
            self._after = now if self._are_norms_local else None
            result = original(*args, **kwargs)
            self._after = now
            return result

        return backward

    def _around_scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                # the update may have been left out, on some ranks only
                self._after = None

        return step

    def _around(self, do: Callable[..., None], place: int) -> Callable[..., Any]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def collective(*args: Any, **kwargs: Any) -> Any:
                if not self._is_exchanging:
                    return original(*args, **kwargs)
                do(*args, **kwargs)
                is_async = args[place] if len(args) > place else kwargs.get("async_op", False)
                return _Over() if is_async else None

            return collective

        return make

    def _around_kept(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            before, self._is_kept = self._is_kept, True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_kept = before

        return collective

    def _around_sum(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def sum_(world: Any, tensor: Tensor, *, of_gradients: bool = False) -> Any:
            return _Over() if of_gradients else original(world, tensor)

        return sum_

    def _around_post(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def post(world: Any, sends: Any, receives: Any) -> Any:
            own = {tensor.untyped_storage().data_ptr() for many in sends.values() for tensor in many}
            for tensor in (tensor for many in receives.values() for tensor in many):
                # where something of this rank's is already, it stays; other memory holds nothing yet
                if tensor.untyped_storage().data_ptr() not in own:
                    tensor.zero_()
            return _Over()

        return post


class _Over:
    """A collective that is over: what asynchronous ones return."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def block_current_stream(self) -> None:
        return None

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([])
        return future


def _leave(*args: Any, **kwargs: Any) -> None:
    """What was handed in is what comes out."""


@torch.no_grad()
def _gather(tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> None:
    tensor_list[dist.get_rank(group)].copy_(tensor)


@torch.no_grad()
def _gather_into(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> None:
    flat, rank = output_tensor.view(-1), dist.get_rank(group)
    size = input_tensor.numel()
    flat[rank * size : (rank + 1) * size].copy_(input_tensor.reshape(-1))


@torch.no_grad()
def _scatter(
    output: Tensor, input_list: list[Tensor], op: Any = None, group: Any = None, async_op: bool = False
) -> None:
    output.copy_(input_list[dist.get_rank(group)])


@torch.no_grad()
def _scatter_tensor(
    output: Tensor, input: Tensor, op: Any = None, group: Any = None, async_op: bool = False
) -> None:
    size, rank = output.numel(), dist.get_rank(group)
    output.view(-1).copy_(input.reshape(-1)[rank * size : (rank + 1) * size])


_INSTEAD: dict[str, tuple[Callable[..., None], int]] = {
    "all_reduce": (_leave, 3),
    "all_reduce_coalesced": (_leave, 3),
    "reduce": (_leave, 4),
    "broadcast": (_leave, 3),
    "all_gather": (_gather, 3),
    "all_gather_into_tensor": (_gather_into, 3),
    "reduce_scatter": (_scatter, 4),
    "reduce_scatter_tensor": (_scatter_tensor, 4),
}
"""What is done in place of a collective, and where among its arguments it is told if it is asynchronous."""

_KEPT = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "barrier")
"""Collectives that stay, and are made of others."""
