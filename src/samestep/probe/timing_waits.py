"""Where a program waits: exchanges, reads from a device, checkpoints, and phases that are told."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist  # noqa: TID251 (it is watched, not used)
from torch import Tensor

from samestep import phase
from samestep.probe.arrival import Arrival
from samestep.probe.collectives import Collectives
from samestep.probe.replacing import Replacements
from samestep.probe.timing_blocks import TimingWatch
from samestep.probe.timing_steps import Backwards

_READS = ("item", "tolist", "cpu", "__float__")
_CHECKPOINT = "checkpoint"


class Exchanges(Collectives):
    """The time in functions of torch.distributed, and in waiting for those that were asynchronous."""

    def install(self) -> None:
        super().install()
        if dist.is_available():
            self._replaced.wrap(dist.Work, "wait", self._around)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        clock = self._watch.clock

        def exchange(*args: Any, **kwargs: Any) -> Any:
            depth = clock.enter("exchange")
            try:
                return original(*args, **kwargs)
            finally:
                clock.leave(depth)

        return exchange


class Waits:
    """Counts reads that wait for a device, where there is one: what the program itself does in its steps.

    Data and updates are left out: Adam reads its number of steps, which is in the host's memory anyway.
    """

    def __init__(self, watch: TimingWatch) -> None:
        self._watch = watch
        self._replaced = Replacements()

    def install(self) -> None:
        for name in _READS:
            self._replaced.cover(Tensor, name, self._around_read)
        self._replaced.wrap(torch.cuda, "synchronize", self._around_synchronize)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around_read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(tensor, *args, **kwargs)
            is_own = sys._getframe(1).f_globals.get("__name__", "").startswith("samestep.")
            if not is_own and tensor.device == self._watch.blocks.device:
                self._count()
            return original(tensor, *args, **kwargs)

        return read

    def _around_synchronize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            self._count()
            return original(*args, **kwargs)

        return synchronize

    def _count(self) -> None:
        clock = self._watch.clock
        if clock.aside is None and clock.phase not in ("data", "update"):
            self._watch.blocks.num_waits += 1


class Checkpoints:
    """Sets the clock aside while something is saved."""

    def __init__(self, watch: TimingWatch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._arrival = Arrival("safetensors.torch", self._arrived)

    def install(self) -> None:
        self._replaced.wrap(torch.serialization, "save", self._around, torch)
        self._arrival.install()

    def uninstall(self) -> None:
        self._arrival.uninstall()
        self._replaced.undo()

    def _arrived(self) -> None:
        self._replaced.wrap(sys.modules["safetensors.torch"], "save_file", self._around)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            clock = self._watch.clock
            before = clock.aside
            clock.set_aside(_CHECKPOINT)
            try:
                return original(*args, **kwargs)
            finally:
                clock.set_aside(before)

        return save


class OwnPhases:
    """What programs of Samestep's own tell of themselves: evaluations, checkpoints, weights of losses."""

    def __init__(self, watch: TimingWatch, backwards: Backwards) -> None:
        self._watch = watch
        self._backwards = backwards
        self._replaced = Replacements()
        self._arrivals = (
            Arrival("samestep.train.step", self._steps_arrived),
            Arrival("samestep.train.loop", self._loop_arrived),
        )

    def install(self) -> None:
        self._replaced.wrap(phase, "enter", self._around_enter)
        for arrival in self._arrivals:
            arrival.install()

    def uninstall(self) -> None:
        for arrival in self._arrivals:
            arrival.uninstall()
        self._replaced.undo()

    def _steps_arrived(self) -> None:
        self._replaced.wrap(sys.modules["samestep.train.step"].Stepper, "backward", self._around_backward)

    def _loop_arrived(self) -> None:
        home, user = sys.modules["samestep.train.rehearsal"], sys.modules["samestep.train.loop"]
        self._replaced.wrap(home, "rehearse", self._around_rehearsal, user)

    def _around_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(name: str, *, step: int | None = None, detail: str | None = None) -> None:
            # a rank may wait for others in the middle of anything
            if name != "exchange":
                self._watch.clock.set_aside(detail if detail in ("evaluation", _CHECKPOINT) else None)
            original(name, step=step, detail=detail)

        return enter

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(stepper: Any, loss_sum: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
            with self._counting(0.0 if stepper._world.is_idle else weight):
                return original(stepper, loss_sum, weight, *args, **kwargs)

        return backward

    def _around_rehearsal(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rehearse(*args: Any, **kwargs: Any) -> Any:
            with self._counting(0.0):
                return original(*args, **kwargs)

        return rehearse

    @contextmanager
    def _counting(self, weight: Any) -> Iterator[None]:
        before, self._backwards.weight = self._backwards.weight, weight
        try:
            yield
        finally:
            self._backwards.weight = before
