"""Two machines that are none: network namespaces with one shaped link between them.

Each node has its own interfaces, addresses, ports and shared memory, and shares the file system. The link
has a rate (`tc tbf`), can be cut and mended. It wants root and iproute2; `why_not` says what is missing.
Whatever happens, what was started in a namespace is killed and the namespace deleted; those of a lab that was
itself killed are deleted by the next one.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TOOLS = ("ip", "tc")
ADDRESSES = ("10.201.7.1", "10.201.7.2")
_PREFIX = "samestep-lab"
_BURST_BYTES = 128 * 1024
"""What may pass at once: two packets of the largest size, next to nothing beside what is measured."""
_OWN_MEMORY = 'mount -t tmpfs -o size=2g lab /dev/shm && exec "$@"'
"""What runs below `ip netns exec` has its own mounts: ranks must not meet in memory that machines lack."""


def why_not() -> str | None:
    """What keeps a lab from being made here, or None."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_path()) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    _sweep()
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    made = _run("ip", "netns", "add", probe, check=False)
    if made.returncode != 0:
        return f"this system makes no network namespaces: {made.stderr.strip()}"
    _run("ip", "netns", "delete", probe)
    return None


class Lab:
    """Two nodes and their link of `bits_per_s`; use it in a `with`."""

    def __init__(self, bits_per_s: float) -> None:
        self.bits_per_s = bits_per_s
        self.names = tuple(f"{_PREFIX}-{os.getpid()}-{id(self):x}-{node}" for node in (0, 1))
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> "Lab":
        try:
            for name in self.names:
                _run("ip", "netns", "add", name)
            first, second = self.names
            _run("ip", "-n", first, "link", "add", "link0", "type", "veth", "peer", "name", "link0",
                 "netns", second)  # fmt: skip
            for name, address in zip(self.names, ADDRESSES, strict=True):
                _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "link0")
                _run("ip", "-n", name, "link", "set", "lo", "up")
                _run("ip", "-n", name, "link", "set", "link0", "up")
            self.shape(self.bits_per_s)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
        for name in self.names:
            _delete(name)
        for process in self._started:
            process.wait(20)

    def shape(self, bits_per_s: float) -> None:
        """Give both directions of the link another rate."""
        self.bits_per_s = bits_per_s
        for name in self.names:
            _run("tc", "-n", name, "qdisc", "replace", "dev", "link0", "root", "tbf", "rate",
                 f"{bits_per_s:.0f}bit", "burst", str(_BURST_BYTES), "latency", "50ms")  # fmt: skip

    def cut(self) -> None:
        """Take the second node's interface down: packets are lost, and no connection is told."""
        _run("ip", "-n", self.names[1], "link", "set", "link0", "down")

    def mend(self) -> None:
        """Bring it up again; it keeps its address and its rate."""
        _run("ip", "-n", self.names[1], "link", "set", "link0", "up")

    def start(
        self, node: int, words: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A program on one node, with pipes to both of its outputs."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[node], "sh", "-c", _OWN_MEMORY, "sh", *words],
            env={**os.environ, "PATH": _path(), **(env or {})},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def start_on_both(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, *, port: int = 29577
    ) -> list[subprocess.Popen[str]]:
        """The same program on both nodes, with the variables of a launcher that started it once on each."""
        return [
            self.start(node, words, {**(env or {}), **self.seat(node, port)})
            for node in range(len(self.names))
        ]

    @staticmethod
    def seat(node: int, port: int = 29577) -> dict[str, str]:
        """What torchrun and its kin tell a process that they started on a node."""
        return {
            "RANK": str(node), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(port),
        }  # fmt: skip


def _delete(name: str) -> None:
    """End what runs in a namespace, by its process ids, and delete it."""
    deadline = time.monotonic() + 10
    while pids := _run("ip", "netns", "pids", name, check=False).stdout.split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    _run("ip", "netns", "delete", name, check=False)


def _sweep() -> None:
    """Delete the namespaces of labs whose process is gone."""
    for line in _run("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        if name.startswith(f"{_PREFIX}-"):
            owner = name.removeprefix(f"{_PREFIX}-").partition("-")[0]
            if not Path(f"/proc/{owner}").exists():
                _delete(name)


def _run(*words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=20, env={**os.environ, "PATH": _path()}
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
