"""Verifying: the runs of a verification, made on this machine and shown in the terminal as they go on."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn
from rich.text import Text

from samestep.experiment import Experiment
from samestep.launch.progress import Progress
from samestep.launch.voices import Said
from samestep.launch.watched import Watched
from samestep.report.console import ranks
from samestep.report.wording import counted
from samestep.verify.runner import Run

REFRESH_S = 0.2


class Verifying:
    """Makes the runs that a verification asks for, each in a folder of its own below `out`; use it in `with`.

    On a terminal one line tells which run is under way and how far it is; elsewhere each run is told once,
    when it begins. With `is_verbose` what the program says is shown as well. `whys` tells by a run's name
    what it was made for.
    """

    def __init__(
        self, watched: Watched, out: Path, console: Console, *, num_worlds: int, is_verbose: bool = False
    ) -> None:
        self.whys: dict[str, str] = {}
        self._watched = watched
        self._out = out
        self._console = console
        # two of the reference, and mostly three for each world that is compared with it
        self._num_expected = 2 + 3 * (num_worlds - 1)
        self._is_verbose = is_verbose
        self._shown_at = 0.0
        self._title = ""
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                console=console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._row = self._bar.add_task("", total=None)

    def __enter__(self) -> "Verifying":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, name: str, world_size: int, experiment: Experiment, *, why: str) -> Run:
        """Make one run, as `Runner` says."""
        self.whys[name] = why
        number = len(self.whys)
        of = f" of about {self._num_expected}" if number <= self._num_expected else ""
        self._title = f"run {number}{of}: {ranks(world_size)}, {why}"
        self._show(self._title, is_new=True)
        folder = self._out / name
        ended = self._watched.run(folder, world_size, experiment, on_tick=self._tick)
        if ended.failure is not None:
            self._console.print(Text(f"{ranks(world_size)}, {why}: {ended.failure.sentence}", style="yellow"))
        return Run(
            name=name,
            world_size=world_size,
            folder=folder,
            status=ended.status,
            experiment=experiment,
            failure=ended.failure,
            seconds=ended.seconds,
        )

    def _tick(self, progress: Sequence[Progress], said: list[Said]) -> None:
        for line in said if self._is_verbose else ():
            self._console.print(
                Text.assemble((line.tag and f"{line.tag} ", "dim"), Text.from_ansi(line.text))
            )
        now = time.monotonic()
        if self._bar is not None and now - self._shown_at >= REFRESH_S:
            self._shown_at = now
            least = min(rank.num_steps for rank in progress)
            state = counted(least, "step") if least else "no step yet"
            self._show(f"{self._title}: {state}")

    def _show(self, text: str, *, is_new: bool = False) -> None:
        if self._bar is not None:
            self._bar.update(self._row, description=text)
        elif is_new:
            self._console.print(Text(text))
