"""Clock reads: whether the program itself reads a clock in a step, and whether its device is waited for.

A program that does the one without the other times how fast work is put into a queue. Only clocks that the
program's own lines read count: libraries read them all the time.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from samestep.probe.callers import is_of_program
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

CLOCK_READ, SYNCHRONIZE = "clock-read", "synchronize"
_CLOCKS = ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "monotonic_ns")


class ClockReads:
    """Notes the first read of a clock in each step, and the first call that waits for a device."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._noted: dict[str, int] = {}

    def install(self) -> None:
        for name in _CLOCKS:
            self._replaced.put(time, name, self._noting(getattr(time, name)))
        for module in (torch.cuda, torch.accelerator):
            self._replaced.wrap(module, "synchronize", self._around_wait)
        self._replaced.wrap(torch.cuda.Event, "synchronize", self._around_wait)

    def uninstall(self) -> None:
        self._replaced.undo()

    def _noting(self, clock: Callable[[], Any]) -> Callable[[], Any]:
        def read() -> Any:
            if self._noted.get(CLOCK_READ) != self._watch.step and is_of_program(sys._getframe(1)):
                self._note(CLOCK_READ)
            return clock()

        return read

    def _around_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            if self._noted.get(SYNCHRONIZE) != self._watch.step:
                self._note(SYNCHRONIZE)
            return original(*args, **kwargs)

        return wait

    def _note(self, name: str) -> None:
        if self._watch.is_awake:
            self._noted[name] = self._watch.step
            self._watch.event(name)
