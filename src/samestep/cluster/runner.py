"""Runner: a process of ours that goes on when the command and the terminal it was started from are gone.

Its jobs are called `PID.START.ITEM`, by which it is not taken for another process that has its number later.
Only the machine that it was started on can tell whether it is there; elsewhere the jobs' own words count.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from samestep.cluster.jobs import Sight
from samestep.cluster.ledger import rows_of
from samestep.cluster.own_words import attempts_path, note, sight_of


def start(words: Sequence[str], folder: Path, items: Sequence[int]) -> list[str]:
    """Start a runner for items of the request in `folder`; the ids of its jobs."""
    for item in items:
        note(folder, item, "submitted", node=os.uname().nodename)
    with (folder / "runner.log").open("ab") as log:
        runner = subprocess.Popen(  # noqa: S603
            list(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return [f"{runner.pid}.{_began(runner.pid)}.{item}" for item in items]


def look(jobs: Mapping[str, Path]) -> dict[str, Sight]:
    """How jobs stand: as they say themselves, or cancelled if their runner is gone and they did not end."""
    found = {}
    for number, folder in jobs.items():
        pid, began, item = number.split(".")
        is_gone = _began(int(pid)) != began and _is_from_here(folder, int(item))
        sight = sight_of(folder, int(item), time.time()) or Sight(state="pending")
        if is_gone and not sight.is_over:
            sight = replace(sight, state="cancelled", reason="its runner is gone")
        found[number] = sight
    return found


def cancel(jobs: Mapping[str, Path]) -> None:
    """Ask the runners of jobs to end them."""
    for number in jobs:
        pid, began, _ = number.split(".")
        if _began(int(pid)) == began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other runner of the same folder of jobs is at work."""
    with (folder.parent / ".turn").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_from_here(folder: Path, item: int) -> bool:
    nodes = [row.get("node") for row in rows_of(attempts_path(folder, item)) if row["event"] == "submitted"]
    return not nodes or nodes[-1] in (None, os.uname().nodename)


def _began(pid: int) -> str:
    """When a process was started, in the system's own count; empty where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
