"""Cheap: what is watched all through a long run, at a small part of a percent of its time.

Every K steps the loss, indices of the batches and a print of each trained model are written down; of passes
over loaders, how often each example was handed out. In between only counters move. No hook is on any module,
and nothing waits for a device but the look itself. Where the rank is now is told through `samestep.phase`.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from samestep import phase
from samestep.observations import ObservationWriter
from samestep.observed import Loss
from samestep.probe.adapters import Adapters
from samestep.probe.callers import where
from samestep.probe.cheap_loaders import CheapLoaders
from samestep.probe.cheap_replicas import Replicas
from samestep.probe.fetches import Fetches
from samestep.probe.installation import Installation
from samestep.probe.origins import Origins
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

MOST_NOT_FINITE = 16
_DIGITS_KEPT = 4


def is_looked_at(step: int, every: int) -> bool:
    """Whether a step is looked at: the first, then every `every`-th; after 10,000 looks every tenth of these.

    After 100,000 such looks it is every hundredth, and so on: at most 9,000 for each factor of ten in steps.
    """
    number, rest = divmod(step, every)
    is_kept = number <= 10**_DIGITS_KEPT or number % 10 ** (len(str(number - 1)) - _DIGITS_KEPT) == 0
    return step == 1 or (rest == 0 and is_kept)


class CheapWatch(Watch):
    """A watch of which no step is full, and only those that are looked at are written down."""

    def __init__(self, writer: ObservationWriter, every: int) -> None:
        self._every = every
        self.tell: Callable[..., None] = _tell_nobody
        super().__init__(writer, 0)

    def _begin_step(self) -> None:
        super()._begin_step()
        self.is_looked_into = is_looked_at(self.step, self._every)

    def end_step(self, optimizer: int, groups: list[dict[str, Any]]) -> None:
        super().end_step(optimizer, groups)
        self.tell("other", step=self.step)

    def pass_step(self) -> None:
        """Begin the next step without a word about this one."""
        self.probe_s += self.clock.take().get("probe", 0.0)
        self.step += 1
        self._begin_step()
        self.tell("other", step=self.step)

    def begin_backward(self) -> None:
        super().begin_backward()
        self.tell("backward", step=self.step)


class CheapInstallation(Installation):
    """The observers of the cheap mode, in the place of all others."""

    def __init__(self, writer: ObservationWriter, every: int) -> None:
        self.watch = self._cheap = watch = CheapWatch(writer, every)
        self._writer = writer
        origins = Origins(watch)
        loaders = CheapLoaders(watch, origins, Fetches(watch), {})
        self._parts = (Steps(watch), origins, loaders, Adapters(watch, loaders), Losses(watch))

    def install(self) -> None:
        super().install()
        place = self._writer.path.with_name("phase")
        told = phase.read(place)
        # a program of Samestep's own tells better than we can
        if told is None or told.pid != os.getpid():
            phase.open(place)
            self._cheap.tell = phase.enter
            phase.enter("other", step=1)


class Steps:
    """Ends a step of the watch after each call of an optimizer's `step`, if it is not inside of another's."""

    def __init__(self, watch: CheapWatch) -> None:
        self._watch = watch
        self._replicas = Replicas(watch)
        self._handles: list[RemovableHandle] = []
        self._under_way: list[int] = []

    def install(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._watch.is_awake:
            # one that is here already was left by an exception
            if id(optimizer) in self._under_way:
                del self._under_way[self._under_way.index(id(optimizer)) :]
            self._under_way.append(id(optimizer))

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        watch = self._watch
        if not watch.is_awake:
            return
        if id(optimizer) in self._under_way:
            del self._under_way[self._under_way.index(id(optimizer)) :]
        if self._under_way:
            return
        try:
            number = self._replicas.meet(optimizer)
        except Exception as error:
            watch.trouble("an optimizer", error)
            number = 0
        if not watch.is_looked_into:
            watch.pass_step()
            return
        with watch.looking("replicas"):
            self._replicas.write()
        with watch.looking("a step"):
            watch.end_step(number, optimizer.param_groups)


class Losses:
    """Observes the losses on which backward is called.

    A loss in the memory of the host is looked at in every step, and written down at once if it is no number;
    others only in steps that are looked at, since reading one waits for its device.
    """

    def __init__(self, watch: CheapWatch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._num_left = MOST_NOT_FINITE

    def install(self) -> None:
        self._replaced.wrap(torch.autograd, "backward", self._around)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            watch = self._watch
            if watch.is_awake:
                watch.begin_backward()
                try:
                    self._look(args[0] if args else kwargs["tensors"])
                except Exception as error:
                    watch.trouble("a loss", error)
            return original(*args, **kwargs)

        return backward

    def _look(self, tensors: Any) -> None:
        watch = self._watch
        loss = tensors if isinstance(tensors, Tensor) else next(iter(tensors))
        is_due = watch.is_looked_into and watch.num_backward == 1
        if loss.numel() != 1 or not (is_due or loss.device.type == "cpu"):
            return
        # for a number that nobody looks at a context would cost more than the look
        value = loss.detach().item() if not is_due else None
        if value is not None and (math.isfinite(value) or not self._num_left):
            return
        with watch.looking("a loss") as able:
            if able:
                self._write(loss)

    def _write(self, loss: Tensor) -> None:
        value = float(loss.detach().item())
        self._num_left -= not math.isfinite(value)
        row = Loss(
            step=self._watch.step,
            number=self._watch.num_backward,
            value=value,
            dtype=str(loss.dtype).removeprefix("torch."),
            num_elements=1,
            where=where(),
        )
        self._watch.write(row, flush=not math.isfinite(value))


def _tell_nobody(name: str, **more: Any) -> None:
    """For when somebody else tells the phases."""
