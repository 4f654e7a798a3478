"""Local: jobs on this machine, one after the other, going on when the terminal is closed.

A runner waits for its turn and makes one attempt at each item. For those who have no scheduler, and to try
`submit` out.
"""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from samestep.cluster import runner
from samestep.cluster.engine import Files
from samestep.cluster.jobs import Sight
from samestep.cluster.request import Request
from samestep.errors import ConfigError


class Local:
    """The engine: all items of a request have one runner."""

    name = "local"

    def files(self, request: Request) -> Files:
        """None; refuses what nobody here would see to."""
        needs = request.needs
        asked = {
            "--time and --like": needs.time_s,
            "--memory": needs.memory_per_rank_bytes,
            "--gpu-type": needs.gpu_type,
            "--option": request.options,
        }
        if unknown := [name for name, value in asked.items() if value]:
            raise ConfigError(
                f"A job of this machine has no limits and no choice of GPUs: leave out {', '.join(unknown)}, "
                "or choose a scheduler with --on."
            )
        return {}

    def check(self) -> None:
        """Any machine will do."""

    def submit(self, folder: Path, request: Request) -> list[str]:
        words = [request.python, "-P", "-m", "samestep.cluster.local", str(folder)]
        return runner.start(words, folder, range(len(request.items)))

    def look(self, jobs: Mapping[str, Path]) -> dict[str, Sight]:
        return runner.look(jobs)

    def cancel(self, jobs: Mapping[str, Path]) -> None:
        runner.cancel(jobs)


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
    runner.await_turn(folder)
    for item in range(len(request.items)):
        if is_stopping:
            return
        attempt = [request.python, "-P", "-m", "samestep.cluster.attempt", str(folder), str(item)]
        with (folder / f"local-{item}.out").open("ab") as out:
            child = subprocess.Popen(attempt, stdin=subprocess.DEVNULL, stdout=out, stderr=out)  # noqa: S603
            child.wait()


if __name__ == "__main__":
    main()
