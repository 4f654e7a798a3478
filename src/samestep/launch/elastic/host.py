"""Host: the process that members are forked from, and that counts losses; the first keeps the store.

`python -m samestep.launch.elastic.host FOLDER LIMITS SEAT`, the latter two as JSON, loads torch once for all
ranks of a seat. It has no rank of its own, so that no rank's death takes the store along. A run on several
machines has a host on each; the members of all meet at the store of the first.
"""

from samestep.launch.elastic import stopping

if __name__ == "__main__":
    stopping.heed()  # before torch is loaded, which takes seconds

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from samestep.errors import SamestepError
from samestep.launch.elastic import gathering
from samestep.launch.elastic.meeting import HERE, LOST, ROUND, Store, TCPStore, hasten
from samestep.launch.elastic.member import FAILED, LEFT, Member
from samestep.launch.limits import Limits
from samestep.launch.machine import gpus_at
from samestep.launch.roll import Ended, Roll
from samestep.launch.tether import TETHERED_TO, die_with
from samestep.launcher import Seat

TICK_S = 0.05
END_S = 3.0
"""From the failure of one rank until others that stay on are killed."""


class Host:
    """Forks the members of a seat, keeps or knows their store, and ends them when too few are left."""

    def __init__(self, folder: Path, limits: Limits, seat: Seat) -> None:
        self._folder = folder
        self._limits = limits
        self._seat = seat
        per_seat = limits.most // seat.count
        self._gpus = gpus_at(seat, per_seat)
        keeps_store = seat.is_first and not seat.has_store
        listener = _listener(seat, 2 * limits.most) if keeps_store else None
        sys.stdout.flush()
        # before the store, which has threads
        numbers = range(seat.index * per_seat, (seat.index + 1) * per_seat)
        self._members = {self._fork(number, listener): number for number in numbers}
        self._store: Store = (
            gathering.store_at(seat)
            if listener is None
            else TCPStore(
                HERE, seat.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        )
        try:
            gathering.gather(folder, self._store, seat)
        except SamestepError:
            self._kill_members()
            for pid in self._members:  # so that the refusal is the last that is said
                os.waitpid(pid, 0)
            raise

    def _fork(self, number: int, listener: socket.socket | None) -> int:
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            if listener is not None:
                listener.close()
            self._become(number, host)
        return pid

    def _become(self, number: int, host: int) -> NoReturn:
        code = FAILED
        try:
            die_with(host)
            os.environ[TETHERED_TO] = str(os.getpid())
            store = gathering.store_at(self._seat)
            member = Member(self._folder, number, store, self._limits, seat=self._seat, gpus=self._gpus)
            gathering.await_all(store, self._seat)
            code = member.serve()
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
        gathering.leave(self._store, self._seat)
        return 0 if failed_at is None else FAILED

    def _kill_members(self) -> None:
        for pid in self._members:
            os.kill(pid, signal.SIGKILL)

    def _kill(self) -> None:
        self._kill_members()
        for rank in Roll(self._folder).started:
            if rank.seat == self._seat.index:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.pid, signal.SIGKILL)

    def _is_loss(self, number: int, code: int) -> bool:
        if code == LEFT:
            return True
        if code < 0:  # somebody killed the member, and the kernel its rank
            roll = Roll(self._folder, self._seat.index)
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


def _listener(seat: Seat, backlog: int) -> socket.socket:
    """Where the store is to be found: by this machine alone, or by all where others have seats."""
    if seat.count == 1:
        return socket.create_server((HERE, seat.port), backlog=max(128, backlog))
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(
        ("", seat.port), family=family, backlog=max(128, backlog), dualstack_ipv6=both
    )


def main() -> int:
    folder, limits, seat = sys.argv[1:]
    hasten()
    try:
        return Host(Path(folder), Limits(**json.loads(limits)), Seat(**json.loads(seat))).serve()
    except SamestepError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
