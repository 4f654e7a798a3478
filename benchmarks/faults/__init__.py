"""Faults: runs that are killed, stopped, starved and lied to, and must end as if nothing had been.

`run` is the campaign and what surviving costs. The long form counts kills; the short one has one fault of
each kind.
"""

import os

from rich.console import Console

from benchmarks.faults import campaign, speed
from benchmarks.rows import Row

TITLE = "faults: what surviving costs"


def run(*, quick: bool, kills: int = 100, seed: int = 0) -> list[Row]:
    """Print the campaign round by round and its table; the rows are of what surviving costs."""
    # as wide as the table needs where the output goes to a file or a pipe
    console = Console(width=None if os.isatty(1) else 150, highlight=False)
    found = campaign.run(kills=None if quick else kills, seed=seed, say=console.print)
    console.print(found.table())
    if found.failures:
        raise SystemExit("\n".join(found.failures))
    return [speed.restart_row(rounds=1 if quick else 9), speed.save_row(quick=quick)]
