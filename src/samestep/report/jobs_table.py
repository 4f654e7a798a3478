"""Jobs as people see them: one row a job, why each that is over did not end well, live or once."""

import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samestep.cluster.looking import Seen
from samestep.cluster.request import clock

_STYLES = {"finished": "green", "running": "cyan", "pending": "dim", "stopped": "yellow", "unknown": "yellow"}
EVERY_S = 5.0
"""How often a scheduler is asked while somebody looks on."""
_WIDE = 1000
"""Columns where there is no terminal: rows are not broken, for programs to read."""


def listing(seen: Sequence[Seen]) -> Group:
    """The table, and below it a line for each job that has something to say."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("job", "id", "ranks", "state", "waited", "ran", "attempts", "steps"):
        table.add_column(
            name,
            no_wrap=name != "job",
            justify="right" if name in ("ranks", "steps") else "left",
            overflow="fold",  # a name of which the end is missing may be any of a sweep
        )
    for job in seen:
        sight, progress = job.sight, job.progress
        steps = f"{progress.step}/{progress.num_steps}" if progress.num_steps else str(progress.step or "")
        table.add_row(
            Text(job.entry.name),
            Text(job.entry.id),
            Text(str(job.world_size)),
            Text(sight.state, style=_STYLES.get(sight.state, "red")),
            Text(_clock(sight.wait_s)),
            Text(_clock(sight.run_s)),
            Text(str(sight.num_attempts)),
            Text(steps),
        )
    words = [
        Text(f"{job.entry.name}: {told}")
        for job in seen
        for told in (job.ending or job.sight.reason, job.remark)
        if told
    ]
    return Group(table, *words)


def show_jobs(seen: Sequence[Seen]) -> None:
    """Print them once, to standard output."""
    is_seen = sys.stdout.isatty()
    width = None if is_seen else _WIDE
    Console(file=sys.stdout, highlight=False, soft_wrap=not is_seen, width=width).print(listing(seen))


def follow_jobs(look: Callable[[], Sequence[Seen]], every_s: float = EVERY_S) -> Sequence[Seen]:
    """Show them until all are over; where there is no terminal, a line for each change of state."""
    console = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
    seen = look()
    if not console.is_terminal:
        told: dict[str, str] = {}
        while True:
            for job in seen:
                if told.get(job.entry.id) != job.sight.state:
                    told[job.entry.id] = job.sight.state
                    console.print(Text(f"{job.entry.name} ({job.entry.id}): {job.sight.state}"))
            if all(job.sight.is_over for job in seen):
                return seen
            time.sleep(every_s)
            seen = look()
    with Live(listing(seen), console=console, transient=True, auto_refresh=False) as live:
        while not all(job.sight.is_over for job in seen):
            time.sleep(every_s)
            seen = look()
            live.update(listing(seen), refresh=True)
    return seen


def _clock(seconds: float | None) -> str:
    return "" if seconds is None else clock(seconds)
