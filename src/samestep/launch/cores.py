"""Cores: how many this process may use, and the work that is done on them, as Linux tells it.

Where a control group limits processor time, the cores are those of the limit, and the work on them is that of
the group: others have none of it.
"""

import contextlib
import os
from pathlib import Path

_STAT = Path("/proc/stat")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_BUSY = (1, 2, 3, 6, 7, 8)
"""Of a line of /proc/stat: user, nice, system, irq, softirq, steal; guests are in user and nice already."""


class Cores:
    """The cores of this process; `num` is at least 1."""

    def __init__(self, *, stat: Path = _STAT, groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> None:
        self._stat = stat
        own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self.num = len(own) if own is not None else os.cpu_count() or 1
        self._lines = {f"cpu{core}".encode() for core in own or ()}
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._usage: Path | None = None
        limit = _limit(groups, own_groups)
        if limit is not None and limit[0] < self.num:
            self.num, self._usage = max(1, int(limit[0])), limit[1]

    def busy_s(self) -> float | None:
        """Seconds of work on these cores by anybody, since some time in the past; None if nobody tells."""
        try:
            if self._usage is not None:
                return _usage_s(self._usage)
            return self._of_lines(self._stat.read_bytes())
        except (OSError, ValueError, IndexError):
            return None

    def _of_lines(self, text: bytes) -> float | None:
        ticks = [
            sum(int(fields[index]) for index in _BUSY)
            for line in text[: text.index(b"intr")].splitlines()
            if (fields := line.split())[0] in self._lines
        ]
        return sum(ticks) / self._ticks_per_s if ticks else None


def _limit(groups: Path, own_groups: Path) -> tuple[float, Path] | None:
    """The tightest limit on this process in cores, and the file that tells the group's work."""
    found: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for line in own_groups.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names == "":
                root, files = groups, ("cpu.max", "cpu.stat")
            elif "cpu" in names.split(","):
                root, files = groups / "cpu", ("cpu.cfs_quota_us", "cpuacct.usage")
            else:
                continue
            folder = root / path.lstrip("/")
            for level in (folder, *folder.parents):
                cores = _limit_at(level / files[0])
                if cores is not None and (level / files[1]).is_file():
                    found.append((cores, level / files[1]))
                if level == root:
                    break
    return min(found, default=None)


def _limit_at(file: Path) -> float | None:
    try:
        words = file.read_text().split()
        period = words[1] if len(words) > 1 else file.with_name("cpu.cfs_period_us").read_text()
        return int(words[0]) / int(period) if int(words[0]) > 0 else None
    except (OSError, ValueError, IndexError):  # "max": no limit
        return None


def _usage_s(file: Path) -> float:
    words = file.read_text().split()
    return int(words[0]) / 1e9 if len(words) == 1 else int(words[words.index("usage_usec") + 1]) / 1e6
