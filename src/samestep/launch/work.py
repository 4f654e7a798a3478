"""Work: the processor time of a process and all below it, for one who looks often.

The same as `family.cpu_s`, at a fraction of the cost: files stay open, and who belongs to the family is found
out once a second only, after a first second in which the program itself comes to be. Work of a process that
is new later is therefore seen up to a second late, but never lost.
"""

import contextlib
import os

from samestep.launch.family import descendants

FIND_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Work:
    """One family; None where the system does not tell, as of a process that is gone."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._files: dict[int, int] = {}
        self._began_at: float | None = None
        self._found_at = 0.0
        self._most = 0.0

    def seconds(self, now: float) -> float | None:
        """Processor time of the family so far, which never falls; `now` is a clock of the caller's."""
        if self._began_at is None:
            self._began_at = now
        if now - self._began_at <= FIND_S or now - self._found_at >= FIND_S:
            self._find()
            self._found_at = now
        ticks = {pid: _ticks(file) for pid, file in self._files.items()}
        if ticks.get(self._pid) is None:
            return None
        # one that ends between two reads is counted with neither itself nor its parent until the next look
        self._most = max(self._most, sum(each for each in ticks.values() if each is not None) / _TICKS_PER_S)
        return self._most

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def _find(self) -> None:
        members = {self._pid, *descendants(self._pid)}
        for pid in self._files.keys() - members:
            os.close(self._files.pop(pid))
        for pid in members - self._files.keys():
            with contextlib.suppress(OSError):  # it ended while we looked
                self._files[pid] = os.open(f"/proc/{pid}/stat", os.O_RDONLY)


def _ticks(file: int) -> int | None:
    try:
        fields = os.pread(file, 1024, 0).rpartition(b")")[2].split()
    except OSError:
        return None
    # utime, stime, cutime, cstime: fields 14 to 17 of proc(5), where the second one ends at the parenthesis
    return sum(int(field) for field in fields[11:15])
