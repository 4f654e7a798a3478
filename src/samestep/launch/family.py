"""Family: the processes below a process, and the processor time that they took, as Linux tells it."""

import contextlib
import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on; empty where the system does not tell."""
    found: list[int] = []
    todo = [pid]
    while todo:
        children = _children(todo.pop())
        found += children
        todo += children
    return found


def cpu_s(pid: int) -> float | None:
    """Seconds of processor time of a process and all below it, also of those that were waited for.

    It never falls while the process lives, unless one below is orphaned and leaves the family. None where the
    system does not tell, as of a process that is gone.
    """
    times = [time for each in (pid, *descendants(pid)) if (time := _ticks(each)) is not None]
    return sum(times) / _TICKS_PER_S if times else None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ended while we looked
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _ticks(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # utime, stime, cutime, cstime: fields 14 to 17 of proc(5), where the second one ends at the parenthesis
    return sum(int(field) for field in fields[11:15])
