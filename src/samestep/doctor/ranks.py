"""Ranks: the processes of one launcher that try the exchange itself, and what they said.

They run `samestep.doctor.exchange`, get the environment that ranks of a training get, and die with this
process. The first that fails ends the others here at once: what they wait for will not come.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from samestep.launch.agent import environment_of
from samestep.launch.machine import gpus_at, interface_at, threads_per_rank
from samestep.launcher import Seat

MOST_S = 200.0
"""For all that they do, on a slow link and from a slow disk."""
TICK_S = 0.05
_OF_LAUNCHERS = ("TORCHELASTIC_", "PET_")
"""What torchrun and Kubernetes tell the process above, which is not the place of these ranks."""
_TOLD = 300


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The `num` ranks that a process with this seat starts."""

    seat: Seat
    num: int

    def run(self, *, first: int, size: int, address: str, port: int) -> dict[str, Any]:
        """What the rank of number 0 measured, if it is here, or why they failed.

        They are those from `first` on of `size` in all, which meet at `address`.
        """
        env = self._environment() | {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(self.num),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        tether = [sys.executable, "-P", "-m", "samestep.launch.tether", str(os.getpid())]
        command = [*tether, sys.executable, "-P", "-m", "samestep.doctor.exchange"]
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as said:
            started = [
                subprocess.Popen(  # noqa: S603
                    command,
                    env=env | {"RANK": str(first + local), "LOCAL_RANK": str(local)},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=errors,
                )
                for local in range(self.num)
            ]
            try:
                failed = self._wait(started)
            finally:
                for process in started:
                    process.kill()
                    process.wait()
            if failed is not None:
                errors.seek(0)
                text = errors.read().decode(errors="replace")
                return {"error": f"rank {first + failed[0]} {failed[1]}: {_last_line(text)}"}
            said.seek(0)
            lines = said.read().decode().splitlines()
            return dict(json.loads(lines[-1])) if first == 0 and lines else {}

    def _wait(self, started: list["subprocess.Popen[bytes]"]) -> tuple[int, str] | None:
        """None when all ended well, else the first that did not, and how."""
        deadline = time.monotonic() + MOST_S
        while time.monotonic() < deadline:
            codes = [process.poll() for process in started]
            for local, code in enumerate(codes):
                if code:
                    return local, f"ended with exit code {code}"
            if all(code == 0 for code in codes):
                return None
            time.sleep(TICK_S)
        late = next(local for local, process in enumerate(started) if process.poll() is None)
        return late, f"was not done after {MOST_S:.0f} s"

    def _environment(self) -> dict[str, str]:
        seat = self.seat
        interface = "lo" if seat.count == 1 else interface_at(seat)
        threads = threads_per_rank(self.num * seat.local_count, None)
        env = environment_of(os.environ, threads=threads, interface=interface)
        env = {name: value for name, value in env.items() if not name.startswith(_OF_LAUNCHERS)}
        if gpus := gpus_at(seat, self.num):
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return env


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("frame #")]
    told = [line for line in lines if "Error" in line] or lines
    return told[-1][:_TOLD] if told else "nothing was said"
