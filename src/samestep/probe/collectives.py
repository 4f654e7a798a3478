"""Collectives: what the program asks of torch.distributed.

What wraps exchange inside of torch's own C++ code, such as DDP's gradients, does not pass here.
"""

import sys
from collections.abc import Callable
from threading import local
from typing import Any

import torch.distributed as dist  # noqa: TID251 (it is watched, not used)
import torch.multiprocessing
from torch import Tensor

from samestep.observed import Group, Spawn
from samestep.probe.arrival import Arrival
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

_WATCHED = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv",
    "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
)  # fmt: skip


_KEPT: list[Any] = []
"""Groups that were made. A wrapped model that is freed after its group was destroyed frees the group, too,
which in torch 2.13 with gloo hangs now and then; held here, it is freed with the process."""


class Collectives:
    """Observes calls of torch.distributed's functions; those made by other such functions count with them.

    The time of an asynchronous one is that of the call; waiting for it is not seen.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._inside = local()
        self._arrival = Arrival("samestep.window", self._window_arrived)

    def install(self) -> None:
        self._replaced.wrap(torch.multiprocessing, "spawn", self._around_spawn)
        if not dist.is_available():
            return
        home = dist.distributed_c10d
        for name in _WATCHED:
            if name in vars(home):
                self._replaced.wrap(home, name, self._around, dist)
        self._replaced.wrap(home, "init_process_group", self._around_init, dist)
        self._arrival.install()

    def uninstall(self) -> None:
        self._arrival.uninstall()
        self._replaced.undo()

    def _window_arrived(self) -> None:
        window = sys.modules["samestep.window"].Window
        for name in _WATCHED:
            if name in vars(window):
                self._replaced.wrap(window, name, self._around)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        name = original.__name__

        def collective(*args: Any, **kwargs: Any) -> Any:
            watch = self._watch
            if not watch.is_awake or getattr(self._inside, "one", False):
                return original(*args, **kwargs)
            with watch.looking("a collective"):
                watch.collective(name, _num_bytes((*args, *kwargs.values())))
            self._inside.one = True
            depth = watch.clock.enter("exchange")
            try:
                return original(*args, **kwargs)
            finally:
                self._inside.one = False
                watch.clock.leave(depth)

        return collective

    def _around_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            watch = self._watch
            if watch.is_awake and not getattr(self._inside, "one", False):
                with watch.looking("the process group"):
                    _KEPT.append(dist.group.WORLD)
                    row = Group(
                        step=watch.step,
                        rank=dist.get_rank(),
                        world_size=dist.get_world_size(),
                        backend=str(dist.get_backend()),
                    )
                    watch.write(row, flush=True)
                    watch.event("process group")
            return result

        return init_process_group

    def _around_spawn(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def spawn(*args: Any, **kwargs: Any) -> Any:
            if self._watch.is_awake:
                with self._watch.looking("processes"):
                    count = args[2] if len(args) > 2 else kwargs.get("nprocs", 1)
                    self._watch.write(Spawn(step=self._watch.step, num_processes=int(count)), flush=True)
            return original(*args, **kwargs)

        return spawn


def _num_bytes(values: tuple[Any, ...]) -> int:
    """The bytes of the largest tensor, or list of tensors, among a function's arguments."""
    sizes = [0]
    for value in values:
        parts = value if isinstance(value, list | tuple) else [value]
        sizes.append(sum(part.numel() * part.element_size() for part in parts if isinstance(part, Tensor)))
    return max(sizes)
