"""Gate: lets a training take some steps when the conductor says so, and holds it in between.

A training that waits at its gate uses no processor, so that libraries whose ranks live side by side can take
turns. Works for loops that belong to the library: it needs nothing but a call after every step.
"""

import time
from typing import Any

from benchmarks.peers.line import Line


class Gate:
    """Call it after every step; True means that the training is to end.

    After the first step it says that it is ready. A turn is some steps that do not count, which empty what
    loaders have fetched meanwhile, and some that do.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._left = 0
        self._counted = 0
        self._is_turn = False
        self._began = (0.0, 0.0)

    def __call__(self, batch: Any) -> bool:
        self._left -= 1
        if self._left > 0:
            if self._left == self._counted:
                self._began = _clocks()
            return False
        self._report()
        turn = self._line.hear()
        self._counted, before = turn["steps"], turn["before"]
        self._left, self._is_turn = self._counted + before, True
        if not before:
            self._began = _clocks()
        return self._left == 0

    def _report(self) -> None:
        if not self._is_turn:
            self._line.say(ready=time.time())
            return
        wall, processor = (now - then for now, then in zip(_clocks(), self._began, strict=True))
        self._line.say(wall_s=wall / self._counted, processor_s=processor / self._counted)


def _clocks() -> tuple[float, float]:
    """Of the wall, and of the processor for all threads of this process."""
    return time.perf_counter(), time.process_time()
