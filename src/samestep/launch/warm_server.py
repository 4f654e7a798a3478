"""Warm server: a process that has torch loaded and no thread running, of which ranks are forked.

`python -m samestep.launch.warm_server PARENT SOCKET MODULE…` loads the modules, and forks a rank below a
keeper for each request, a line of JSON, that comes through the socket. It tells the pid of the keeper and,
later, its exit code. It ends with its parent, and the keepers with it. A fork that would not be as a start is
refused, with the reason. What the forked process does to become a rank is in `warm_rank`.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from samestep.errors import SamestepError
from samestep.launch.keeper import keep
from samestep.launch.tether import die_with
from samestep.launch.warm_rank import Request, become, run
from samestep.probe.run import parse


class Server:
    """Serves requests until the one who asks is gone."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._numbers: dict[int, int] = {}
        """Of ranks that were asked for, by the pids of keepers that have not been waited for."""
        self._heard = b""
        self._ended, self._wake = os.pipe()
        for end in (self._ended, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> Request:
        """Fork whenever asked; returns in a rank, and nowhere else."""
        self._say(ready=True)
        while True:
            ready, _, _ = select.select([self._channel.fileno(), self._ended], [], [])
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._tell_ends()
            if self._channel.fileno() in ready:
                heard = self._channel.recv(65536)
                if not heard:
                    os._exit(0)
                *lines, self._heard = (self._heard + heard).split(b"\n")
                for line in lines:
                    request = self._do(json.loads(line))
                    if request is not None:
                        return request

    def _do(self, asked: dict[str, Any]) -> Request | None:
        if "end" in asked:
            for pid, number in self._numbers.items():
                if number == asked["end"]:
                    os.kill(pid, asked["signal"])
            return None
        number = asked.pop("fork")
        request = Request(**asked)
        reason = why_not() or _in_the_way(request)
        if reason:
            self._say(fork=number, refused=reason)
            return None
        pid = os.fork()
        if pid == 0:
            self._leave()
            keep(os.getppid())  # its end of the socket stays open, to show that it is there
            self._channel.close()
            become(request)
            return request
        self._numbers[pid] = number
        self._say(fork=number, pid=pid)
        return None

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._ended)
        os.close(self._wake)

    def _tell_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                number = self._numbers.pop(found[0])
                self._say(fork=number, code=os.waitstatus_to_exitcode(found[1]))

    def _say(self, **words: object) -> None:
        with contextlib.suppress(ConnectionError):  # nobody is there: the next request is the end
            self._channel.sendall(json.dumps(words).encode() + b"\n")


def load(names: list[str]) -> str:
    """Load modules; why nothing can be forked from here, or nothing."""
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return f"{name} cannot be loaded ({type(error).__name__}: {error})"
    return why_not()


def why_not() -> str:
    """Why a fork of this process would not be as one that was started, or nothing."""
    num_threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if num_threads > 1:
        return f"{num_threads} threads run where torch and what else was asked for are loaded"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is in use where torch and what else was asked for are loaded"
    return ""


def _in_the_way(request: Request) -> str:
    """Why the program would load other modules than are loaded here: its own folder comes first."""
    if sys.flags.safe_path:
        return ""
    try:
        program = parse(request.arguments).program
    except SamestepError:
        return ""  # the rank itself will say so
    folder = Path(request.folder)
    if program[0] != "-m":
        folder = (folder / program[0]).resolve().parent
    name = hidden_by(folder)
    return f"{folder / name} would be loaded in place of a module that is loaded already" if name else ""


def hidden_by(folder: Path) -> str:
    """A file or folder that Python would take for a module of which another one is loaded, or nothing."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return ""
    for entry in entries:
        name = entry.name.partition(".")[0]
        if name not in sys.modules or name == "__main__":
            continue
        is_module = entry.name.endswith(tuple(all_suffixes())) or (entry / "__init__.py").is_file()
        loaded = getattr(sys.modules[name], "__file__", None)
        if is_module and (loaded is None or not Path(loaded).resolve().is_relative_to(entry.resolve())):
            return entry.name
    return ""


def main() -> Request:
    """Serve as the command line says; returns in a rank."""
    parent, descriptor, *modules = sys.argv[1:]
    die_with(int(parent))
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder: not that of the program
    channel = socket.socket(fileno=int(descriptor))
    channel.set_inheritable(False)
    reason = load(modules)
    if reason:
        channel.sendall(json.dumps({"refused": reason}).encode() + b"\n")
        os._exit(1)
    return Server(channel).serve()


if __name__ == "__main__":
    run(main())
