"""Agent: torch's elastic agents as processes of ours, and what can be known of the ranks below them.

They run in a session of their own, so a terminal's Ctrl-C does not reach them, and die with this process.
They put each rank in a session as well; ranks die with their agent. Their own talk goes to agent.log. What
they do is in `elastic`, which this process never loads, since it knows torch.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from samestep.launch.job import Job
from samestep.launch.limits import Limits
from samestep.launch.roll import Roll
from samestep.launcher import Seat
from samestep.record import rank_folder

_OF_AN_OUTER_RANK = ("SAMESTEP_LOCAL_RANK", "SAMESTEP_LOCAL_SIZE", "SAMESTEP_SEAT")


def command_of(*, folder: Path, limits: Limits, seat: Seat) -> list[str]:
    """The command line that starts the ranks that this seat has of the job in `folder`."""
    told = [str(folder), json.dumps(asdict(limits)), json.dumps(asdict(seat))]
    return [sys.executable, "-P", "-m", "samestep.launch.elastic.host", *told]


def environment_of(
    env: Mapping[str, str], *, threads: int, job: Job | None = None, interface: str | None = "lo"
) -> dict[str, str]:
    """The environment of agents and ranks: the user's, with what ranks need that exchange by `interface`."""
    env = {name: value for name, value in env.items() if name not in _OF_AN_OUTER_RANK}
    defaults = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    forced = {
        "OMP_NUM_THREADS": str(threads),
        # a file called random.py in the working folder must not become torch's `random`
        "PYTHONSAFEPATH": "1",
        # ranks of a later attempt must not read addresses of an earlier one (pytorch #135712)
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if job is not None:
        for name in ("SAMESTEP_SHARDS", "SAMESTEP_ALLOW_DRIFT"):
            env.pop(name, None)  # of a run that started this one
        forced["SAMESTEP_MODE"] = job.mode
        if job.shards is not None:
            forced["SAMESTEP_SHARDS"] = str(job.shards)
        if job.allow_drift:
            forced["SAMESTEP_ALLOW_DRIFT"] = "1"
        if job.mode == "bitwise":
            # without it cuBLAS may choose another order of sums from call to call
            defaults["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return defaults | env | forced


class Agent:
    """The running agents of one seat and all ranks of the run, known by what they wrote down.

    Agents of the first seat talk to agent.log. What others say is kept until it is wanted: the folder may
    turn out not to be the one that the first knows, and torch complains of the first that leaves before them.
    """

    def __init__(self, *, folder: Path, limits: Limits, seat: Seat, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.limits = limits
        self.seat = seat
        self.roll = Roll(folder, seat.index)
        self._log = folder / "agent.log"
        self._told: set[tuple[int, int]] = set()
        tether = [sys.executable, "-P", "-m", "samestep.launch.tether", str(os.getpid())]
        self._talk = None if seat.is_first else tempfile.TemporaryFile()  # noqa: SIM115 - for as long as this
        file = self._log.open("wb") if self._talk is None else os.fdopen(os.dup(self._talk.fileno()), "wb")
        with file as log:
            self._process = subprocess.Popen(  # noqa: S603
                tether + command_of(folder=folder, limits=limits, seat=seat),
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
    def is_good(self) -> bool:
        """Whether the agents of this seat have ended, and none of them failed."""
        return self._process.poll() == 0

    @property
    def size(self) -> int:
        """The ranks of the newest round; those asked for before there is any."""
        started = self.roll.started
        return started[0].size if started else self.limits.most

    def pids(self) -> list[int]:
        """The ranks of the newest round that this seat started, of which some may have ended."""
        return sorted(entry.pid for entry in self.roll.started if entry.seat == self.seat.index)

    @property
    def has_lost_all(self) -> bool:
        """Whether this seat had ranks, and none of the newest round runs any more."""
        pids = self.pids()
        return bool(pids) and not any(_is_alive(pid) for pid in pids)

    def exit_codes(self) -> tuple[dict[int, int], list[int]]:
        """The exit codes of ranks of the newest round that failed, and those that did so first, in order."""
        newest = max((entry.round for entry in self.roll.started), default=0)
        failed = [e for e in self.roll.ended if e.round == newest and e.code != 0]
        causes = [entry.rank for entry in failed if entry.is_cause and entry.verdict != "done"]
        return {entry.rank: entry.code for entry in failed}, causes

    def ask_ranks_to_stop(self, number: int) -> None:
        """Tell each rank of the signal, once: finish the step, save, leave; and the agents, that it is meant.

        Ranks that are only being started while this is called need to be told by another call.
        """
        if (0, number) not in self._told:
            self._told.add((0, number))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
        for pid in self.pids():
            if (pid, number) not in self._told:
                self._told.add((pid, number))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def kill(self) -> None:
        """End ranks, their children and the agents at once; returns when they are gone."""
        was_running = self.is_running
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        pids = self.pids()  # none is added any more
        for pid in pids if was_running else []:  # else they ended before it, or the kernel ends them now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and any(_is_alive(pid) for pid in pids):
            time.sleep(0.01)

    def pass_on_talk(self) -> None:
        """Write to standard error what the agents of another seat than the first have said."""
        if self._talk is not None:
            self._talk.seek(0)
            sys.stderr.write(self._talk.read().decode("utf-8", "replace"))

    def last_words(self) -> str:
        """The last line of what the agents said, for when they failed before any rank was there."""
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        lines = [line for line in text.splitlines() if line.strip(" =-*")]
        return lines[-1].strip() if lines else "nothing"

    def signals_heard(self) -> list[int]:
        """The signals that ranks of the newest round noted, in the order of ranks."""
        found = []
        for rank in range(self.size):
            with contextlib.suppress(OSError, ValueError):
                found.append(int((rank_folder(self.folder, rank) / "signal").read_text()))
        return found


def _is_alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
