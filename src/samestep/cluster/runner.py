"""Runner: a process of ours that goes on when the command and the terminal it was started from are gone.

Its jobs are called `PID.START.ITEM`, by which it is not taken for another process that has its number later.
Only the machine that it was started on can tell whether it is there; elsewhere the jobs' own words count.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from samestep.cluster.jobs import Sight
from samestep.cluster.ledger import rows_of
from samestep.cluster.own_words import attempts_path, note, sight_of

LOOK_S = 0.2
LISTED_S = 10.0
"""How long a runner waits to be written down, should the one who started it have been killed before."""


def start(words: Sequence[str], folder: Path, items: Sequence[int]) -> list[str]:
    """Start a runner for items of the request in `folder`; the ids of its jobs."""
    for item in items:
        note(folder, item, "submitted", node=os.uname().nodename)
    with (folder / "runner.log").open("ab") as log:
        runner = subprocess.Popen(  # noqa: S603
            list(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    name = f"{runner.pid}.{_began(runner.pid)}"
    with _line(folder).open("a", encoding="utf-8") as line:
        line.write(f"{os.uname().nodename} {name}\n")
    return [f"{name}.{item}" for item in items]


def look(jobs: Mapping[str, Path]) -> dict[str, Sight]:
    """How jobs stand: as they say themselves, or cancelled if their runner is gone and they did not end."""
    found = {}
    for number, folder in jobs.items():
        pid, began, item = number.split(".")
        is_gone = _began(int(pid)) != began and _is_from_here(folder, int(item))
        sight = sight_of(folder, int(item), None if is_gone else time.time()) or Sight(state="pending")
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


def await_turn(folder: Path) -> None:
    """Return in a runner when those that were started before it for the same folder of jobs are gone."""
    me = f"{os.getpid()}.{_began(os.getpid())}"
    patience = time.monotonic() + LISTED_S
    while True:
        ahead = _ahead_of(me, _line(folder))
        if ahead == [] or (ahead is None and time.monotonic() > patience):
            return
        time.sleep(LOOK_S)


def _line(folder: Path) -> Path:
    """Where runners stand in line, in the order in which they were started."""
    return folder.parent / ".runners"


def _ahead_of(me: str, line: Path) -> list[str] | None:
    """The runners at work or waiting that come before one; None while that one is not written down."""
    entries = [entry.rpartition(" ") for entry in line.read_text().splitlines()] if line.exists() else []
    names = [name for node, _, name in entries if node == os.uname().nodename]
    if me not in names:
        return None
    before = (name.split(".") for name in names[: names.index(me)])
    return [pid for pid, began in before if _began(int(pid)) == began]


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
