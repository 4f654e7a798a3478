"""Starting: one rank below the probe, as a process of ours, with the variables that torchrun sets."""

import contextlib
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from samestep.launch.agent import environment_of
from samestep.launch.job import Job
from samestep.launch.keeper import KILL_S
from samestep.launch.tether import TETHERED_TO

_OF_AN_OUTER_RUN = (TETHERED_TO, "SAMESTEP_RESTARTS")


class Process(Protocol):
    """One rank's process, in a session of its own."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """The exit code, below 0 for a signal; None while it runs."""

    def kill(self) -> None:
        """Have it end, with all that it started."""

    def wait(self) -> None:
        """Return when nothing of it is left."""


class Start(Protocol):
    """Starts `python -m samestep.probe ARGUMENTS`; output goes to stdout.log and stderr.log in `logs`."""

    def __call__(self, arguments: Sequence[str], env: Mapping[str, str], logs: Path) -> Process: ...


class Kept:
    """A process below a keeper."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], logs: Path) -> None:
        keeper = [sys.executable, "-P", "-m", "samestep.launch.keeper", str(os.getpid())]
        with (logs / "stdout.log").open("ab") as out, (logs / "stderr.log").open("ab") as err:
            self._process = subprocess.Popen(  # noqa: S603
                [*keeper, sys.executable, "-m", "samestep.probe", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def wait(self) -> None:
        try:
            self._process.wait(KILL_S + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def variables(
    rank: int, size: int, *, run: str, port: int, env: Mapping[str, str], threads: int, job: Job
) -> dict[str, str]:
    """The environment of a rank: what the user has, what torchrun sets, and what one machine needs.

    Hash seeds differ by rank and by run, as they do without a launcher, but are the same when the run of that
    name is made again; a seed of the user's own stays.
    """
    own_path = {name: env[name] for name in ("PYTHONSAFEPATH",) if name in env}
    found = environment_of(env, threads=threads, job=job)
    if job.command == "script":  # its own folder is where it finds its modules
        found.pop("PYTHONSAFEPATH")
        found |= own_path
    for name in _OF_AN_OUTER_RUN:
        found.pop(name, None)
    seed = 1 + zlib.crc32(f"{run}/{rank}".encode()) % (2**32 - 1)
    return (
        {"PYTHONHASHSEED": str(seed), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        | found
        | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default",
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "GROUP_WORLD_SIZE": "1",
            "ROLE_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": f"samestep-{run}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "PYTHONUNBUFFERED": "1",
        }
    )
