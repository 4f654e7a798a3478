"""Warm: starts ranks by forking them from processes of ours that have torch loaded already.

Such a rank is at its first line within a fraction of a second. It differs from a started one in nothing
that a program can rely on, but for these: its hash seed is that of the process it was forked from, of which
there are `num`, as PYTHONHASHSEED in its environment tells; and when it ends, only its main module is taken
apart. Where forking would show (threads, CUDA in use, another environment than torch was loaded with, a file
of the program's own in the place of a module that is loaded), the rank is started instead, and a remark says
why. Linux only; elsewhere all ranks are started. This process never loads torch: see `warm_server`.
"""

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from samestep.launch.keeper import KILL_S
from samestep.launch.starting import Kept, Process

_ALWAYS = ("torch", "torch._dynamo", "torch.distributed", "torch.utils.data")
_OF_THE_PROBE = ("samestep.probe.installation",)
_OF_TASKS = ("samestep.target", "samestep.train.session", "samestep.train.loop")
_READ_WHEN_LOADED = (
    *("PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "DNNL_", "ONEDNN_"),
    *("TORCH_", "PYTORCH_", "ATEN_", "LD_", "LC_", "LANG"),
)
_BY_LIBRARIES = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""What scikit-learn sets when it is loaded, in the process that starts ranks as well as in ranks."""
_OF_ONE_RANK = ("MASTER_", "TORCHELASTIC_", "ROLE_", "GROUP_")


class Warm:
    """A `Start` of ranks with `threads` threads each, to be used by one thread and closed: `with Warm(…)`.

    The processes that ranks are forked from begin with the first rank and stay until `close`, which ends all
    that came from them. `modules` are loaded in them as well. `remarks` says why ranks were not forked.
    """

    def __init__(self, *, threads: int, num: int = 1, modules: Sequence[str] = ()) -> None:
        self.remarks: list[str] = []
        self._threads = threads
        self._modules = (*_ALWAYS, *_OF_THE_PROBE, *modules)
        self._servers: list[_Server | None] = [None] * num
        self._loading: dict[str, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Return when nothing is left of the processes and their ranks."""
        for server in self._servers:
            if server is not None:
                server.close()
        self._servers = [None] * len(self._servers)

    def __call__(self, arguments: Sequence[str], env: Mapping[str, str], logs: Path) -> Process:
        is_task = "samestep.rank" in arguments
        try:
            self._check(env, is_task=is_task)
            server = self._server(env, is_task=is_task)
            return server.fork(arguments, env, logs)
        except _Refused as refusal:
            remark = f"A rank was started anew, not forked, which takes seconds longer: {refusal}."
            if remark not in self.remarks:
                self.remarks.append(remark)
            return Kept(arguments, env, logs)

    def _check(self, env: Mapping[str, str], *, is_task: bool) -> None:
        """Refuse an environment that would have had torch, or Python, loaded in another way."""
        if not sys.platform.startswith("linux"):
            raise _Refused(f"on {sys.platform} a process with torch cannot be forked safely")
        found = {
            name: env[name]
            for name in sorted(env)
            if name.startswith(_READ_WHEN_LOADED) and name not in _BY_LIBRARIES
        }
        found.pop("PYTHONHASHSEED", None)
        if not all(map(os.path.isabs, env.get("PYTHONPATH", "/").split(os.pathsep))):
            found["the working folder"] = str(Path.cwd())
        found["the kind of program"] = "a task" if is_task else "a script"
        if self._loading is None:
            self._loading = found | {"OMP_NUM_THREADS": str(self._threads)}
        for name in found.keys() | self._loading.keys():
            now, then = found.get(name), self._loading.get(name)
            if now != then:
                raise _Refused(f"{name} is {now}, and was {then} where torch was loaded")

    def _server(self, env: Mapping[str, str], *, is_task: bool) -> "_Server":
        """The one to fork the rank from: another for each rank and for runs of other names, as far as may be.

        One that was lost in the meantime is replaced.
        """
        modules = (*self._modules, *(_OF_TASKS if is_task else ()))
        for number, server in enumerate(self._servers):
            if server is None or server.is_lost:
                self._servers[number] = _Server(number, env, modules)
        run = zlib.crc32(env.get("TORCHELASTIC_RUN_ID", "").encode())
        chosen = self._servers[(int(env.get("RANK", "0")) + run) % len(self._servers)]
        assert chosen is not None, "all have just been started"
        return chosen


class _Refused(Exception):
    """A rank cannot be forked, for the reason given."""


class _Server:
    """One process that ranks are forked from, and what it has told of them. Both speak lines of JSON.

    Ranks are known by numbers of ours, so that one whose request was cut short can still be ended.
    """

    def __init__(self, number: int, env: Mapping[str, str], modules: Sequence[str]) -> None:
        self.codes: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._refusals: dict[int | None, str] = {}
        self._is_ready = self._is_over = False
        self._numbers = itertools.count()
        self._heard = b""
        env = {name: text for name, text in env.items() if not _is_of_one_rank(name)}
        env["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", str(number + 1))
        # OpenBLAS starts its threads when it is loaded: ranks set their own number
        env["OPENBLAS_NUM_THREADS"] = "1"
        # so does the allocator of Arrow, which comes with pandas, and pandas with scikit-learn
        env.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "samestep.launch.warm_server", str(os.getpid())]
            self._process = subprocess.Popen(  # noqa: S603
                [*command, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )

    @property
    def is_lost(self) -> bool:
        """Whether it has ended though it could serve."""
        self.hear()
        return self._is_over and self._is_ready

    def fork(self, arguments: Sequence[str], env: Mapping[str, str], logs: Path) -> "_Forked":
        number = next(self._numbers)
        request = {"arguments": list(arguments), "env": dict(env), "logs": str(logs.absolute())}
        try:
            self._send({"fork": number, "folder": str(Path.cwd())} | request)
            while number not in self._pids:
                for key in (None, number):
                    if key in self._refusals:
                        raise _Refused(self._refusals[key])
                if self._is_over:
                    raise _Refused("the process to fork it from has ended")
                self.hear(1.0)
        except BaseException:
            self.end(number, signal.SIGTERM)
            raise
        return _Forked(number, self._pids[number], self)

    def end(self, number: int, sent: signal.Signals) -> None:
        """Signal a rank's keeper, unless it has ended: only its parent can know that."""
        self._send({"end": number, "signal": int(sent)})

    def hear(self, seconds: float = 0.0) -> None:
        """Take in what it has said since, waiting for the first word if need be."""
        while not self._is_over and select.select([self._socket], [], [], seconds)[0]:
            seconds = 0.0
            try:
                heard = self._socket.recv(65536)
            except ConnectionError:
                heard = b""
            self._is_over = not heard
            *lines, self._heard = (self._heard + heard).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def code_of(self, number: int) -> int | None:
        """The exit code of a rank; all have ended when nobody is left who could tell."""
        return self.codes.get(number, -signal.SIGTERM if self._is_over else None)

    def close(self) -> None:
        """End it and its ranks; its side of the socket is closed when the last of their keepers has ended."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + KILL_S + 1
        if not self._is_ready:
            self._process.kill()  # it may be loading modules, and has no ranks
        while not self._is_over and time.monotonic() < deadline:
            self.hear(0.1)
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._is_over = True

    def _send(self, request: Mapping[str, Any]) -> None:
        if not self._is_over:
            with contextlib.suppress(ConnectionError):  # its end is heard of
                self._socket.sendall(json.dumps(request).encode() + b"\n")

    def _take(self, said: Mapping[str, Any]) -> None:
        if "refused" in said:
            self._refusals[said.get("fork")] = said["refused"]
        elif "code" in said:
            self.codes[said["fork"]] = said["code"]
        elif "pid" in said:
            self._pids[said["fork"]] = said["pid"]
        else:
            self._is_ready = True


class _Forked:
    """A rank that was forked; `pid` is that of its keeper."""

    def __init__(self, number: int, pid: int, server: _Server) -> None:
        self.pid = pid
        self._number = number
        self._server = server

    def poll(self) -> int | None:
        self._server.hear()
        return self._server.code_of(self._number)

    def kill(self) -> None:
        self._server.end(self._number, signal.SIGTERM)

    def wait(self) -> None:
        if not self._has_ended_within(KILL_S + 1):
            self._server.end(self._number, signal.SIGKILL)
            self._has_ended_within(1.0)

    def _has_ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            self._server.hear(0.1)
        return self.poll() is not None


def _is_of_one_rank(name: str) -> bool:
    return name.startswith(_OF_ONE_RANK) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
