"""Blocks: the times of steps, a few of them together in each row.

The device is waited for at the end of a block only, and losses are read from it there. Writing a row belongs
to no block, and so does what the program does after its last step, which has a row of its own. Knows steps,
seconds, and how to ask the system about this process.
"""

import os
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samestep.observed import BETWEEN_STEPS, First, Span, Timing
from samestep.probe.timing_clock import TimingClock
from samestep.probe.watch import Watch

BLOCK_S = 0.05
MOST_STEPS = 10
IN_DETAIL = frozenset((*range(3, 7), *range(21, 25)))
"""Steps whose phases are written down one by one."""

_BEGAN_S = time.monotonic()

Loss = tuple[Tensor | float, Tensor | float]
"""What backward was called on, and its weight."""


class TimingWatch(Watch):
    """A watch of which no step is full or looked into; `blocks` has what is written of them."""

    def __init__(self, writer: Any, num_steps: int | None, *, is_cold: bool) -> None:
        super().__init__(writer, 0)
        self.clock: TimingClock = TimingClock()
        self.blocks = Blocks(self, self.clock, num_steps, is_cold=is_cold)

    def _begin_step(self) -> None:
        if self.step == 1:
            super()._begin_step()
        # of the rest, nothing is counted here
        self.is_full = self.is_looked_into = False
        self.num_forward = self.num_backward = 0

    def next_step(self, num_examples: int | None) -> None:
        """End the step under way and begin the next."""
        self.blocks.end_step(num_examples)
        self.step += 1
        self._begin_step()


class Blocks:
    """The block under way; it ends after `num_steps` steps, or once it is long enough to be timed well."""

    def __init__(self, watch: Watch, clock: TimingClock, num_steps: int | None, *, is_cold: bool) -> None:
        self._watch = watch
        self._clock = clock
        self._most_steps = num_steps or MOST_STEPS
        self._least_s = BLOCK_S if num_steps is None else float("inf")
        self._is_cold = is_cold
        self._memory = _Memory()
        self.device = torch.device("cpu")
        self.num_waits = 0
        self.losses: list[Loss] = []
        """Of the step under way."""
        self._begin()

    def _begin(self) -> None:
        self._clock.restart()
        self._began = self._last = _Moment(self._clock.now_s, time.process_time(), {})
        self._step_s: list[float] = []
        self._losses: list[list[Loss]] = []
        self._num_examples: int | None = 0
        self._spans: list[Span] = []
        self.num_waits = 0

    def end_step(self, num_examples: int | None) -> None:
        """The step under way has ended now."""
        step = self._watch.step
        before, self._last = self._last, self._now(self._clock.spent())
        between_s = self._last.between_steps_s - before.between_steps_s
        self._step_s.append(self._last.at_s - before.at_s - between_s)
        if self._num_examples is not None:
            self._num_examples = None if num_examples is None else self._num_examples + num_examples
        self._losses.append(self.losses)
        self.losses = []
        self._take_spans(step)
        if step == 1:
            self._watch.write(First(seconds=_age_s(), is_cold=self._is_cold))
        is_long = self._last.at_s - self._began.at_s >= self._least_s
        if is_long or len(self._step_s) >= self._most_steps or step == 1:
            self._synchronise()
            self._last = self._now(self._clock.take())
            self._write(step + 1)
            self._begin()
        self._clock.is_detailed = step + 1 in IN_DETAIL

    def close(self) -> None:
        """Write what is left: steps of a block that is not full, and time after the last of them."""
        self._synchronise()
        end = self._now(self._clock.take())
        if self._step_s:
            self._write(self._watch.step)
        self._watch.write(self._row(self._watch.step, (), self._last, end), flush=True)
        self._watch.probe_s += end.phases_s.get("probe", 0.0)
        self._memory.close()

    def _now(self, phases_s: dict[str, float]) -> "_Moment":
        return _Moment(self._clock.now_s, time.process_time(), phases_s)

    def _synchronise(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def _take_spans(self, step: int) -> None:
        if self._clock.is_detailed:
            pieces = self._clock.take_pieces()
            for phase, same in groupby(pieces, key=lambda piece: _told(piece.phase)):
                first, *more = same
                seconds = first.seconds + sum(piece.seconds for piece in more)
                self._spans.append(Span(step=step, phase=phase, began_s=first.began_s, seconds=seconds))

    def _write(self, next_step: int) -> None:
        row = self._row(next_step - len(self._step_s), self._step_s, self._began, self._last)
        for span in self._spans:
            self._watch.write(span)
        self._watch.write(row, flush=True)

    def _row(self, first_step: int, step_s: Sequence[float], begin: "_Moment", end: "_Moment") -> Timing:
        phases_s = {
            phase: seconds - begin.phases_s.get(phase, 0.0) for phase, seconds in end.phases_s.items()
        }
        return Timing(
            first_step=first_step,
            num_steps=len(step_s),
            num_examples=self._num_examples if step_s else 0,
            seconds=end.at_s - begin.at_s,
            step_s=tuple(step_s),
            phases_s=_by_told_phase(phases_s),
            cpu_s=end.cpu_s - begin.cpu_s,
            rss_bytes=self._memory.rss_bytes(),
            device_bytes=_device_bytes(self.device),
            began_s=self._clock.monotonic_s(begin.at_s),
            losses=tuple(_mean(losses) for losses in self._losses) if step_s else (),
            num_waits=self.num_waits if step_s else 0,
        )


class _Moment(NamedTuple):
    """A time of `perf_counter`, the processors' time until then, and the phases' since the block began."""

    at_s: float
    cpu_s: float
    phases_s: dict[str, float]

    @property
    def between_steps_s(self) -> float:
        return sum(self.phases_s.get(phase, 0.0) for phase in BETWEEN_STEPS)


def _told(phase: str) -> str:
    # what watching costs is small, and no phase of the program's
    return "other" if phase == "probe" else phase


def _by_told_phase(phases: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for phase, seconds in phases.items():
        found[_told(phase)] = found.get(_told(phase), 0.0) + seconds
    return found


def _mean(losses: list[Loss]) -> float | None:
    """The mean by weight; what has no weight was not trained on."""
    pairs = [(float(value), float(weight)) for value, weight in losses]
    total = sum(weight for _, weight in pairs)
    return sum(value for value, weight in pairs if weight) / total if total else None


class _Memory:
    """The memory of this process; its file stays open, since opening it costs more than reading it."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        try:
            self._file: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None

    def rss_bytes(self) -> int:
        """What is resident; 0 where the system does not tell."""
        try:
            return int(os.pread(self._file, 256, 0).split()[1]) * self._page if self._file is not None else 0
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _device_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _age_s() -> float:
    """Seconds since this process was started, or forked; where the system does not tell, since it timed."""
    try:
        # the name of the program comes second, in brackets, and may have blanks in it
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - _BEGAN_S
