"""Host: the process that members are forked from, that keeps the store at which they meet, and counts losses.

`python -m samestep.launch.elastic.host FOLDER PORT LEAST MOST [RESTARTS]` loads torch once for all. It has
no rank of its own, so that no rank's death takes the store along.
"""

from samestep.launch.elastic import stopping

if __name__ == "__main__":
    stopping.heed()  # before torch is loaded, which takes seconds

import contextlib
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from samestep.launch.elastic.meeting import HERE, LOST, ROUND, TCPStore, hasten
from samestep.launch.elastic.member import FAILED, LEFT, Member
from samestep.launch.limits import Limits
from samestep.launch.machine import visible_gpus
from samestep.launch.roll import Ended, Roll
from samestep.launch.tether import TETHERED_TO, die_with

TICK_S = 0.05
STORE_S = 20.0
"""How long members wait for what others are to tell them at once."""
END_S = 3.0
"""From the failure of one rank until others that stay on are killed."""


class Host:
    """Forks the members, keeps their store, and ends them all when too few are left."""

    def __init__(self, folder: Path, port: int, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._gpus = visible_gpus()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((HERE, port))
        self._listener.listen(max(128, 2 * limits.most))
        sys.stdout.flush()
        # before the store, which has threads
        self._members = {self._fork(number): number for number in range(limits.most)}
        self._store = TCPStore(
            HERE, port, is_master=True, wait_for_workers=False, master_listen_fd=self._listener.detach()
        )

    def _fork(self, number: int) -> int:
        host, port = os.getpid(), self._listener.getsockname()[1]
        pid = os.fork()
        if pid == 0:
            self._listener.close()
            self._become(number, host, port)
        return pid

    def _become(self, number: int, host: int, port: int) -> NoReturn:
        code = FAILED
        try:
            die_with(host)
            os.environ[TETHERED_TO] = str(os.getpid())
            store = TCPStore(HERE, port, is_master=False, timeout=timedelta(seconds=STORE_S))
            code = Member(self._folder, number, store, self._limits, gpus=self._gpus).serve()
        except BaseException:
            sys.excepthook(*sys.exc_info())  # to agent.log
        finally:
            sys.stderr.flush()
            os._exit(code)

    def serve(self) -> int:
        """Wait for all members; 0 if none failed."""
        failed_at: float | None = None
        while self._members:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                number = self._members.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                is_good = code == 0 or failed_at is not None
                if not (is_good or (self._is_loss(number, code) and self._is_enough())):
                    failed_at = time.monotonic()
                continue
            if failed_at is not None and time.monotonic() - failed_at > END_S:
                self._kill()
                failed_at = time.monotonic()
            time.sleep(TICK_S)
        return 0 if failed_at is None else FAILED

    def _kill(self) -> None:
        for pid in self._members:
            os.kill(pid, signal.SIGKILL)
        for rank in Roll(self._folder).started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)

    def _is_loss(self, number: int, code: int) -> bool:
        if code == LEFT:
            return True
        if code < 0:  # somebody killed the member, and the kernel its rank
            roll = Roll(self._folder)
            last = roll.last_of(number)
            if last is not None:
                roll.write(Ended(round=last.round, member=number, rank=last.rank, code=code, verdict="lost"))
            return True
        return False

    def _is_enough(self) -> bool:
        """Count a loss, for all members to see; whether the run can go on after it."""
        num_left = self._limits.most - int(self._store.add(LOST, 1))
        may_begin_again = int(self._store.add(ROUND, 0)) < self._limits.most_rounds
        return num_left >= self._limits.least and may_begin_again and not stopping.asked()


def main() -> int:
    folder, *numbers = sys.argv[1:]
    port, least, most, *restarts = (int(number) for number in numbers)
    hasten()
    limits = Limits(least=least, most=most, restarts=restarts[0] if restarts else None)
    return Host(Path(folder), port, limits).serve()


if __name__ == "__main__":
    sys.exit(main())
