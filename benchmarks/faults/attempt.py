"""Attempt: one `samestep train` as a process, its ranks as targets, and what it leaves behind.

Knows processes and the files of a run; nothing of what is done to them, or why.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from samestep import phase
from samestep.launch.machine import free_port
from samestep.launch.roll import Roll, Started
from samestep.record import rank_folder

Place = Literal["start-up", "steps", "saving", "evaluation"]
PLACES: tuple[Place, ...] = ("start-up", "steps", "saving", "evaluation")
SHARDS = 4
TASK = Path(__file__).with_name("training.py")
PATIENCE_S = 100.0
"""How long anything may take on a busy machine before the campaign calls it a hang."""
GONE_S = 10.0
"""The same for processes whose parent was killed."""
_MARK = "SAMESTEP_CAMPAIGN"


class Hang(Exception):
    """Something that was to happen did not."""


class Attempt:
    """A started command; `gpus` as on the command line."""

    def __init__(
        self,
        out: Path,
        *words: str,
        gpus: str = "2",
        is_first: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.out = out
        self.gpus = gpus
        self.port = free_port()
        out.parent.mkdir(parents=True, exist_ok=True)
        mode = ["--mode", "bitwise", "--shards", str(SHARDS)] if is_first else ["--resume"]
        command = [sys.executable, "-m", "samestep.cli", "train", str(TASK), "--out", str(out), "--json"]
        place = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", _MARK: str(out)}
        self._answer, self._talk = out.with_suffix(".out"), out.with_suffix(".err")
        with self._answer.open("wb") as answer, self._talk.open("ab") as talk:
            self.process = subprocess.Popen(
                [*command, *mode, "--gpus", gpus, "--port", str(self.port), *words],
                stdin=subprocess.DEVNULL, stdout=answer, stderr=talk, start_new_session=True,
                env={**os.environ, **place, **(env or {})},
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """What the command told the user, in this attempt and those before it."""
        return self._talk.read_text(errors="replace")

    @property
    def result(self) -> dict[str, Any]:
        """What it answered."""
        answer: dict[str, Any] = json.loads(self._answer.read_text() or "{}")
        return answer

    def ranks(self) -> list[Started]:
        """The ranks of the newest round that live."""
        return [rank for rank in Roll(self.out).started if self._owns(rank.pid)]

    @property
    def rounds(self) -> int:
        return Roll(self.out).round

    def place_of(self, rank: Started) -> Place:
        """What a rank is doing."""
        now = phase.read(rank_folder(self.out, rank.rank) / "phase")
        if now is None or now.pid != rank.pid or now.detail == "start-up" or now.step is None:
            return "start-up"
        if now.detail == "checkpoint" or (rank.rank == 0 and self.is_saving):
            return "saving"
        return "evaluation" if now.detail == "evaluation" else "steps"

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written; a thread does that, beside the steps."""
        with contextlib.suppress(OSError):
            return any(path.name.startswith(".tmp-step") for path in (self.out / "checkpoints").iterdir())
        return False

    def checkpoints(self) -> list[Path]:
        """The finished ones by step, the newest last; of a step that was saved twice, the second."""
        found = sorted(self.out.glob("checkpoints/step-*"))
        return list({path.name[: len("step-000000000")]: path for path in found}.values())

    def member_of(self, rank: Started) -> int:
        return _parent_of(rank.pid)

    def host(self) -> int:
        """The process above all members, or 0 before there is one."""
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            return next((pid for pid in map(int, children) if self._owns(pid)), 0)
        return 0

    def signal(self, pid: int, number: int) -> bool:
        """Send a signal to a process of this run; whether it was still there."""
        if not (pid and self._owns(pid)):  # a number may belong to another process by now
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def hold(self, rank: Started) -> bool:
        """Stop a rank where it is; whether it was still there."""
        if not self.signal(rank.pid, signal.SIGSTOP):
            return False
        end = time.monotonic() + 5
        while _state_of(rank.pid) not in "TZX" and time.monotonic() < end:
            time.sleep(0.0005)
        return _state_of(rank.pid) == "T"

    def wait_until(self, condition: Callable[[], bool], *, every_s: float = 0.002) -> bool:
        """Wait for something to become true; False if the attempt ended before."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if not self.is_running:
                return False
            if time.monotonic() > end:
                raise Hang(f"nothing happened for {PATIENCE_S:.0f} s: {self.said[-500:]}")
            time.sleep(every_s)
        return True

    def wait(self) -> int:
        """The exit code, when the command has ended."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Hang(f"the run did not end within {PATIENCE_S:.0f} s: {self.said[-500:]}") from None

    def leftovers(self) -> list[str]:
        """What is still there a few seconds after the command has ended; nothing should be."""
        end = time.monotonic() + GONE_S
        while (left := self._leftovers()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def end(self) -> None:
        """Kill what is left, so that a round that failed disturbs no other."""
        for pid in self._processes():
            self.signal(pid, signal.SIGKILL)
        self.process.wait()

    def _leftovers(self) -> list[str]:
        found = [f"process {pid}" for pid in self._processes()]
        with contextlib.suppress(FileNotFoundError), (self.out / ".lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append("lock")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                found.append(f"port {self.port}")
        return found

    def _processes(self) -> list[int]:
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if self._owns(int(path.name))]

    def _owns(self, pid: int) -> bool:
        """Whether a process runs, and was started for this run: its environment or command line names it."""
        if pid == os.getpid() or _state_of(pid) in "ZX":
            return False
        mark = f"{_MARK}={self.out}".encode()
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return str(self.out).encode() in words or mark in Path(f"/proc/{pid}/environ").read_bytes().split(
                b"\0"
            )
        return False


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
