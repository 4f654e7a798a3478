"""Watch: what the observers of one rank share."""

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from samestep.observations import ObservationWriter, is_sampled
from samestep.observed import Clip, Collective, Event, Row, Step, Trouble
from samestep.probe.callers import where
from samestep.probe.clock import Clock
from samestep.record import is_kept

MOST_EVENTS = 200
MOST_CLIPS = 32
MOST_ROWS = 8192
"""Rows of calls and batches in one step: a step may contain a whole evaluation."""


class Watch:
    """The step under way, what was counted in it, and the way to the file.

    Steps count from 1; `step` is the one under way. Observers do their work inside of `looking`, so that no
    exception of theirs reaches the program.
    """

    def __init__(self, writer: ObservationWriter, steps_in_full: int) -> None:
        self._writer = writer
        self._steps_in_full = steps_in_full
        self._told: set[str] = set()
        self.is_on = True
        self.exchanges_in_backward = False
        self.clock = Clock()
        self.step = 1
        self.num_scheduler_steps = 0
        self.num_collectives = 0
        self.probe_s = 0.0
        self._begin_step()

    def _begin_step(self) -> None:
        self.is_full = self.step <= self._steps_in_full
        self.is_looked_into = self.is_full or is_sampled(self.step)
        self.num_forward = self.num_backward = self.num_skipped = self.num_scheduler_steps = 0
        self.scale: float | None = None
        self.last_gradient_s: float | None = None
        self.has_evaluated = False
        self._rows_left = MOST_ROWS
        self._events: list[tuple[str, int]] = []
        self._clips: list[Clip] = []
        self._calls: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._lines: dict[tuple[str, str], str] = {}

    @property
    def path(self) -> Path:
        """The file that rows go to."""
        return self._writer.path

    @property
    def is_awake(self) -> bool:
        """Whether to watch now: not in a child process, nor while torch turns the program into a graph."""
        return self.is_on and not torch.compiler.is_compiling()

    def looking(self, place: str) -> "_Looking":
        """A context for an observer's own work, which it charges to the probe and keeps failures inside."""
        return _Looking(self, place)

    def write(self, row: Row, *, flush: bool = False) -> None:
        if self.is_on:
            self._writer.write(row, flush=flush)

    def write_some(self, row: Row) -> None:
        """Write a row of a kind of which one step may have any number."""
        self._rows_left -= 1
        if self._rows_left >= 0:
            self.write(row)
        else:
            self._writer.dropped[type(row).__name__] += 1

    def event(self, name: str) -> None:
        """Note that something happened in this step, after all that was noted before."""
        if self._events and self._events[-1][0] == name:
            self._events[-1] = (name, self._events[-1][1] + 1)
        elif len(self._events) < MOST_EVENTS:
            self._events.append((name, 1))

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened since the last step, in order."""
        return tuple(Event(name=name, count=count) for name, count in self._events)

    def begin_backward(self) -> None:
        self.num_backward += 1
        self.last_gradient_s = None
        self.event("backward")

    def clipped(self, kind: str, limit: float, norm: float | None) -> None:
        self.event("clip")
        if len(self._clips) < MOST_CLIPS:
            after = len(self._events) - 1
            self._clips.append(Clip(kind=kind, limit=limit, norm=norm, after=after, where=where()))

    def collective(self, name: str, num_bytes: int) -> None:
        phase = self.clock.phase
        key = name, "between" if phase in ("other", "exchange") else phase
        self._calls[key] += 1
        self._bytes[key] += num_bytes
        self.num_collectives += 1
        if key not in self._lines:
            self._lines[key] = where()
        self.event(name)

    def end_step(self, optimizer: int, groups: list[dict[str, Any]]) -> None:
        """Write down the step under way, if it is one that is kept, and begin the next."""
        phases = self.clock.take()
        self.probe_s += phases.get("probe", 0.0)
        if self.is_looked_into or is_kept(self.step):
            collectives = (
                Collective(name=name, phase=phase, count=num, num_bytes=self._bytes[name, phase], where=line)
                for ((name, phase), num), line in zip(self._calls.items(), self._lines.values(), strict=True)
            )
            row = Step(
                step=self.step,
                optimizer=optimizer,
                is_full=self.is_full,
                lr=tuple(float(group.get("lr", 0.0)) for group in groups[:64]),
                weight_decay=tuple(float(group.get("weight_decay", 0.0)) for group in groups[:64]),
                num_forward=self.num_forward,
                num_backward=self.num_backward,
                num_scheduler_steps=self.num_scheduler_steps,
                scale=self.scale,
                num_skipped=self.num_skipped,
                clips=tuple(self._clips),
                collectives=tuple(collectives),
                events=self.events,
                phases_s=phases,
            )
            self.write(row, flush=True)
        self.step += 1
        self._begin_step()

    def trouble(self, place: str, error: BaseException) -> None:
        """Write down that an observer failed, once for each place."""
        if place not in self._told:
            self._told.add(place)
            self.write(Trouble(step=self.step, place=place, error=f"{type(error).__name__}: {error}"[:500]))


class _Looking:
    """Yields whether looking is possible: not while a graph is traced or captured, nor inside of vmap."""

    __slots__ = ("_depth", "_no_grad", "_place", "_watch")

    def __init__(self, watch: Watch, place: str) -> None:
        self._watch = watch
        self._place = place

    def __enter__(self) -> bool:
        self._depth = self._watch.clock.enter("probe")
        self._no_grad = torch.no_grad()
        self._no_grad.__enter__()
        is_tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        return not (is_tracing or _is_capturing() or _is_transforming())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._no_grad.__exit__(kind, error, trace)
        is_ours = isinstance(error, Exception)
        if is_ours and error is not None:
            self._watch.trouble(self._place, error)
        self._watch.clock.leave(self._depth)
        return is_ours


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_transforming() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None
