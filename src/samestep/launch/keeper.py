"""Keeper: runs one program in a session of its own, and leaves nothing of it behind, whoever dies first.

`python -P -m samestep.launch.keeper PARENT COMMAND…` ends as COMMAND ends. On SIGTERM, or when process PARENT
ends in whatever way, all that COMMAND has started is killed, and so is what it left behind when it ended by
itself. Processes that leave their session or lose their parent are found all the same, since the keeper is
the one that orphans are given to (Linux; elsewhere only the session is killed). Knows nothing of ranks.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from typing import NoReturn

from samestep.launch.family import descendants
from samestep.launch.tether import die_with

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_HEARD = {signal.SIGTERM, signal.SIGCHLD}
KILL_S = 5.0
"""How long processes that were killed are waited for: one may be deep in the kernel."""


def main() -> NoReturn:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    keep(parent)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
    finally:
        os._exit(127)


def keep(parent: int) -> None:
    """Become the keeper of a new process, in a session of its own, in which alone this returns.

    This process ends as that one does, when it is told to, or with `parent`, which started it.
    """
    # signals wait until `sigwait` asks for them, so that none comes between two lines
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the tie was made
        os._exit(1)
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        die_with(me)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return
    code = _wait(pid)
    _clear(pid)
    end_with(-signal.SIGTERM if code is None else code)


def _wait(pid: int) -> int | None:
    """The exit code of the program, below 0 for a signal; None if it is to be killed."""
    while signal.sigwait(_HEARD) == signal.SIGCHLD:
        codes = _reap()
        if pid in codes:
            return codes[pid]
    return None


def _reap() -> dict[int, int]:
    """The exit codes of all children that have ended, orphans included."""
    codes: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes


def _clear(session: int) -> None:
    """Kill until nothing is left: what is killed may have started something in the meantime."""
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        below = descendants(os.getpid())
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        if not below:
            return
        time.sleep(0.005)


def end_with(code: int) -> NoReturn:
    """End this process by an exit code, or by the signal that one below 0 stands for."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own, if any
        number = -code
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
