"""Crew: the ranks of one library, in processes of their own, led over sockets.

Knows how each library is launched and what to do when its ranks fail or hang; knows nothing of what they do.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.peers.line import Closed, Line, Message

_ROOT = Path(__file__).parent.parent.parent
_START_S = 600.0
"""DeepSpeed compiles at its first start, which takes minutes."""
_ANSWER_S = 180.0


class CrewError(Exception):
    """A library did not do what it was asked to: why, in one line."""


class Crew:
    """The ranks of the library `name`, started by its launcher; for `with`."""

    def __init__(self, name: str, size: int, *, launcher: str | None = None) -> None:
        self.name, self.size = name, size
        self._folder = TemporaryDirectory(prefix="peers-")
        path = f"{self._folder.name}/line"
        self._log = Path(self._folder.name, "log")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self.began = time.time()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                _command(launcher or ("ray" if name == "ray" else "torchrun"), name, size, path),
                cwd=self._folder.name,
                env=_environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._lines, self.settings = self._meet()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def ask(self, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        """The answers of `function(library, line, **arguments)` by rank."""
        self.begin(function, **arguments)
        return [message["answer"] for message in self.hear()]

    def begin(self, function: Callable[..., Any], **arguments: Any) -> None:
        """Let the ranks begin with `function`, which will talk."""
        self.say(call=f"{function.__module__}:{function.__name__}", arguments=arguments)

    def say(self, **message: Any) -> None:
        for line in self._lines:
            line.say(**message)

    def hear(self, timeout_s: float = _ANSWER_S) -> list[Message]:
        """A message of each rank; raises CrewError for the first that has failed."""
        heard = []
        for line in self._lines:
            try:
                heard.append(line.hear(timeout_s))
            except TimeoutError:
                raise CrewError(f"no answer within {timeout_s:.0f} s") from None
            except (Closed, ConnectionError):
                raise CrewError(f"ended: {self._last_words()}") from None
        for message in heard:
            if "error" in message:
                raise CrewError(message["error"])
        return heard

    def take(self, steps: int, before: int = 0) -> tuple[float, float]:
        """Let a training that waits at its gate take a turn; seconds a step, by the clock and the processor.

        The clock is that of the slowest rank, the processor's time the sum over ranks.
        """
        self.say(steps=steps, before=before)
        heard = self.hear()
        return max(m["wall_s"] for m in heard), sum(m["processor_s"] for m in heard)

    def end_training(self) -> None:
        """Let a training that waits at its gate come to its end."""
        self.say(steps=0, before=0)
        self.hear()

    def close(self) -> None:
        """Let the ranks go, and wait for them."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self.say(call=None)
            self._process.wait(timeout=60)
        self.kill()

    def kill(self) -> None:
        """End whatever is left."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        for line in getattr(self, "_lines", []):
            line.close()
        self._listener.close()
        self._folder.cleanup()

    def _processes(self) -> list[psutil.Process]:
        """The launcher and all that it started, in sessions of their own as well."""
        with suppress(psutil.NoSuchProcess):
            launcher = psutil.Process(self._process.pid)
            return [launcher, *launcher.children(recursive=True)]
        return []

    def _meet(self) -> tuple[list[Line], str]:
        lines: dict[int, Line] = {}
        settings = ""
        self._listener.settimeout(1.0)
        while len(lines) < self.size:
            if self._process.poll() is not None:
                raise CrewError(f"did not start: {self._last_words()}")
            if time.time() > self.began + _START_S:
                raise CrewError(f"did not start within {_START_S:.0f} s: {self._last_words()}")
            try:
                line = Line(self._listener.accept()[0])
            except TimeoutError:
                continue
            hello = line.hear(_START_S)
            lines[hello["rank"]], settings = line, hello["settings"]
        return [lines[rank] for rank in sorted(lines)], settings

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["nothing was said"])[-1]


def _command(launcher: str, name: str, size: int, path: str) -> list[str]:
    if launcher == "ray":
        return [sys.executable, "-m", "benchmarks.peers.libraries.with_ray", str(size), name, path]
    script = ["-m", "benchmarks.peers.rank", name, path]
    if launcher == "samestep":
        own = [sys.executable, "-m", "samestep", "train", "--gpus", str(size), "--out", "run", "--"]
        return [*own, sys.executable, *script]
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", *script
    ]  # fmt: skip


def _environment() -> dict[str, str]:
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
