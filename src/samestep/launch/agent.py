"""Agent: torch's elastic agent as a process of ours, and what can be known of the ranks below it.

The agent runs in a session of its own, so a terminal's Ctrl-C does not reach it, and dies with this process.
It puts each rank in a session as well; ranks die with the agent. Its own talk goes to agent.log.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from samestep.record import rank_folder

_FAILED_LINE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


def command_of(*, folder: Path, ranks: int, port: int) -> list[str]:
    """The command line that starts the ranks of the job in `folder`."""
    return [
        *(sys.executable, "-P", "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"),
        *("--max-restarts", "0", "--monitor-interval", "0.1"),
        *("--log-dir", str(folder / "agent"), "--redirects", "3", "--event-log-handler", "console"),
        *("-m", "samestep.rank", str(folder)),
    ]


def environment_of(env: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """The environment of agent and ranks: the user's, with what ranks on one machine need."""
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    forced = {
        "OMP_NUM_THREADS": str(threads),
        # a file called random.py in the working folder must not become torch's `random`
        "PYTHONSAFEPATH": "1",
        # ranks of a later attempt must not read addresses of an earlier one (pytorch #135712)
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return defaults | dict(env) | forced


class Agent:
    """A running agent and its ranks, known by the pids that they and the agent wrote down."""

    def __init__(self, *, folder: Path, ranks: int, port: int, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.ranks = ranks
        self._log = folder / "agent.log"
        tether = [sys.executable, "-P", "-m", "samestep.launch.tether", str(os.getpid())]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603
                tether + command_of(folder=folder, ranks=ranks, port=port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def pids(self) -> list[int]:
        """The ranks that were started, of which some may have ended."""
        found = {int(event["worker_id"]) for event in self._events() if event["state"] == "START"}
        for rank in range(self.ranks):
            with contextlib.suppress(OSError, ValueError):
                found.add(int((rank_folder(self.folder, rank) / "pid").read_text()))
        return sorted(found)

    def exit_codes(self) -> tuple[dict[int, int], int | None]:
        """The exit codes of ranks that failed, as the agent saw them, and the rank that it missed first."""
        codes: dict[int, int] = {}
        first = None
        for match in _FAILED_LINE.finditer(self._text()):
            first = int(match[2])
            codes[first] = int(match[1])
        for event in self._events():
            if event["state"] == "FAILED" and event["global_rank"] is not None:
                code = (json.loads(event["metadata"]).get("exit_code") or [None])[0]
                if code is not None:
                    codes[event["global_rank"]] = code
        return codes, first

    def ask_ranks_to_stop(self, number: int) -> None:
        """Tell each rank of the signal: finish the step, save, leave."""
        number = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def kill(self) -> None:
        """End ranks, their children and the agent at once; returns when they are gone."""
        if not self.is_running:
            return  # its ranks ended before it or with it
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and any(_is_alive(pid) for pid in pids):
            time.sleep(0.01)

    def last_words(self) -> str:
        """The last line of what the agent said, for when it failed before any rank was there."""
        lines = [line for line in self._text().splitlines() if line.strip(" =-*") and line[0] != "{"]
        return lines[-1].strip() if lines else "nothing"

    def _text(self) -> str:
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._text().splitlines():
            if line.startswith('{"name": "torchelastic.'):
                with contextlib.suppress(ValueError, KeyError):
                    yield json.loads(line)["metadata"]


def _is_alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
