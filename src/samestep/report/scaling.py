"""Scaling: the runs of a sweep, made on this machine and shown in the terminal as they go on."""

import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from samestep.launch.hostwatch import HostFacts, HostWatch
from samestep.launch.progress import Progress
from samestep.launch.starting import Kept, Start
from samestep.launch.voices import Said
from samestep.launch.watched import Watched
from samestep.report.console import ranks
from samestep.report.wording import counted, duration
from samestep.scale.fairness import FEWEST_STEPS
from samestep.scale.looks import LOOK_STEPS
from samestep.scale.runner import Made, Order
from samestep.scale.runs import Host

REFRESH_S = 0.2
LEAST_STEPS = 2 * FEWEST_STEPS
"""Of a timed run, however long its steps are: at most half of them are warm-up."""
NARROW = 70
_HEAVY = ("checkpoints",)
"""What a task leaves in its folder that nobody asks a sweep for."""


class Scaling:
    """Makes the runs that a sweep asks for, each in its folder below `out`; use it in `with`.

    A timed run goes on for `seconds` after its first step, and for `LEAST_STEPS` steps at least. Ranks are
    started by `warm` unless they are to be cold. On a terminal a bar tells how far the sweep is; elsewhere
    each run is told once, when it begins. With `is_verbose` what the program says is shown as well.
    """

    def __init__(
        self,
        watched: Watched,
        out: Path,
        console: Console,
        *,
        seconds: float,
        warm: Start = Kept,
        is_verbose: bool = False,
    ) -> None:
        self._watched = watched
        self._out = out
        self._console = console
        self._seconds = seconds
        self._warm = warm
        self._is_verbose = is_verbose
        self._began = self._shown_at = time.monotonic()
        self._order: Order | None = None
        self._order_at = self._began
        self._first_at: float | None = None
        """When all ranks of the run under way had taken a step."""
        self._bar: Bar | None = None
        if console.is_terminal:
            columns = [TextColumn("{task.fields[title]}", markup=False)]
            if console.width >= NARROW:
                columns.insert(0, BarColumn(bar_width=24))  # type: ignore[arg-type]
            columns.append(TextColumn("{task.fields[left]}", markup=False))
            self._bar = Bar(
                *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._row = self._bar.add_task("", total=None, title="", left="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, order: Order) -> Made:
        """Make one run, as `Runner` says."""
        self._order, self._order_at = order, time.monotonic()
        self._show("", is_new=True)
        folder = self._out / order.name
        shutil.rmtree(folder, ignore_errors=True)  # what was left of it by a sweep that was interrupted
        host = HostWatch(folder / "host.jsonl", start=Kept if order.is_cold else self._warm)
        self._first_at = None

        def tick(progress: Sequence[Progress], said: list[Said]) -> None:
            host.look()
            self._tick(progress, said)

        try:
            ended = self._watched_as(order, host).run(
                folder, order.world_size, order.experiment, on_tick=tick
            )
        finally:
            facts = host.close()
        for name in _HEAVY:
            shutil.rmtree(folder / name, ignore_errors=True)
        reason = "" if ended.failure is None else ended.failure.sentence
        if reason:
            told = f"{ranks(order.world_size)}, {order.why}: {reason}"
            self._console.print(Text(told, style="yellow"))
        seen = host_of(facts, folder / "host.jsonl", since_s=self._first_at)
        return Made(status=ended.status, seconds=ended.seconds, reason=reason, host=seen)

    def _watched_as(self, order: Order, start: Start) -> Watched:
        job = self._watched.job
        if order.batch_size is not None:
            job = dataclasses.replace(job, overrides=(*job.overrides, f"batch_size={order.batch_size}"))
        return dataclasses.replace(
            self._watched,
            job=job,
            steps=LEAST_STEPS if order.is_timed else LOOK_STEPS,
            enough_s=self._seconds if order.is_timed else 0.0,
            options=("--time",) if order.is_timed else (),
            start=start,
        )

    def _tick(self, progress: Sequence[Progress], said: list[Said]) -> None:
        for line in said if self._is_verbose else ():
            tag = (line.tag and f"{line.tag} ", "dim")
            self._console.print(Text.assemble(tag, Text.from_ansi(line.text)))
        now = time.monotonic()
        least = min(rank.num_steps for rank in progress)
        if least and self._first_at is None:
            self._first_at = now
        if self._bar is not None and now - self._shown_at >= REFRESH_S:
            self._shown_at = now
            self._show(counted(least, "step") if least else "starting")

    def _show(self, state: str, *, is_new: bool = False) -> None:
        order = self._order
        assert order is not None, "nothing is shown before a run is asked for"
        what = f"run {order.number}" if order.is_timed else f"look {order.number}"
        which = f", round {order.round}" if order.is_timed else ""
        title = f"{what}{which}: {ranks(order.world_size)}, {order.why}"
        now = time.monotonic()
        left_s = None
        if order.remaining_s is not None:
            left_s = max(0.0, order.remaining_s - (now - self._order_at))
        left = "" if left_s is None else f"about {_told(left_s)} left"
        if self._bar is not None:
            spent = now - self._began
            total = None if left_s is None else spent + left_s
            if self._console.width < NARROW:
                # the time that is left is what one looks for
                title, left = f"{what}: {ranks(order.world_size)}", left.removeprefix("about ")
            elif state:
                title = f"{title}: {state}"
            self._bar.update(self._row, completed=spent, total=total, title=title, left=left)
        elif is_new:
            self._console.print(Text(f"{title}{left and f' ({left})'}"))


def _told(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else duration(seconds)


def host_of(facts: HostFacts, samples: Path, *, since_s: float | None) -> Host:
    """What was seen of the machine during a run; of its GPUs, only since they had work to do."""
    busy, power_w = [], []
    for line in samples.read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if since_s is not None and sample["at_s"] >= since_s:
            busy += [each for each in sample.get("gpu", ()) if each is not None]
            watts = sample.get("gpu_w", ())
            power_w += [sum(watts)] if watts and None not in watts else []
    return Host(
        num_cores=facts.num_cores,
        other_cores=facts.other_cores,
        devices=facts.devices,
        clock_limits_mhz=facts.clock_limits_mhz,
        gpu_utilisation=fmean(busy) if busy else None,
        power_w=fmean(power_w) if power_w else None,
    )
