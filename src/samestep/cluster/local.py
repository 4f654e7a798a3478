"""Local: jobs on this machine, one after the other, going on when the terminal is closed.

A runner, a process in a session of its own, waits for its turn and makes one attempt at each item. For those
who have no scheduler, and to try `submit` out.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType

from samestep.cluster.engine import Files
from samestep.cluster.jobs import Sight
from samestep.cluster.own_words import note, sight_of
from samestep.cluster.request import Request


class Local:
    """The engine: ids are `PID.START.ITEM` of the runner, by which it is not taken for another process."""

    name = "local"

    def files(self, request: Request) -> Files:
        return {}

    def check(self) -> None:
        """Any machine will do."""

    def submit(self, folder: Path, request: Request) -> list[str]:
        for item in range(len(request.items)):
            note(folder, item, "submitted")
        with (folder / "runner.log").open("ab") as log:
            runner = subprocess.Popen(  # noqa: S603
                [request.python, "-P", "-m", "samestep.cluster.local", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        began = _began(runner.pid)
        return [f"{runner.pid}.{began}.{item}" for item in range(len(request.items))]

    def look(self, jobs: Mapping[str, Path]) -> dict[str, Sight]:
        found = {}
        for number, folder in jobs.items():
            pid, began, item = number.split(".")
            is_running = _began(int(pid)) == began
            sight = sight_of(folder, int(item), time.time()) or Sight(state="pending")
            if not is_running and not sight.is_over:
                sight = replace(sight, state="cancelled", reason="its runner is gone")
            found[number] = sight
        return found

    def cancel(self, jobs: Mapping[str, Path]) -> None:
        for number in jobs:
            pid, began, _ = number.split(".")
            if _began(int(pid)) == began:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGTERM)


def _began(pid: int) -> str:
    """When a process was started, in the system's own count; empty where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait until no other runner of the same folder of jobs is at work."""
    with (folder.parent / ".turn").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    folder = Path(sys.argv[1])
    request = Request.read(folder)
    is_stopping = False
    child: subprocess.Popen[bytes] | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        is_stopping = True
        if child is not None:
            child.send_signal(number)
        else:
            sys.exit(1)

    signal.signal(signal.SIGTERM, stop)
    with _turn(folder):
        for item in range(len(request.items)):
            if is_stopping:
                return
            attempt = [request.python, "-P", "-m", "samestep.cluster.attempt", str(folder), str(item)]
            with (folder / f"local-{item}.out").open("ab") as out:
                child = subprocess.Popen(attempt, stdin=subprocess.DEVNULL, stdout=out, stderr=out)  # noqa: S603
                child.wait()


if __name__ == "__main__":
    main()
