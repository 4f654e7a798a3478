"""Host watch: how busy this machine is while a run is under way, and with whose work; host.jsonl.

A line every quarter of a second: {"at_s": monotonic clock, "busy_cores": all work on the cores that this
process may use, "own_cores": that of the run's ranks and of all that they started} and, where the package
nvidia-ml-py is installed and finds GPUs, by rank, {"gpu": how busy, 0 to 1, "gpu_w": watts}. What the system
does not tell is null. No thread: it is called by whoever waits for the run. Judges nothing.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from samestep.launch.cores import Cores
from samestep.launch.gpus import Gpu, gpus_of
from samestep.launch.inventory import gpu_models
from samestep.launch.machine import visible_gpus
from samestep.launch.starting import Kept, Process, Start
from samestep.launch.work import Work

EVERY_S = 0.25


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What was true of the machine during a run; None is what the system did not tell.

    `other_cores`: work done by processes that are not the run's, in cores, on average. `devices`, their
    `clock_limits_mhz` and `gpu_utilisation` (mean, 0 to 1) are by rank, the latter two empty without
    nvidia-ml-py.
    `energy_j` is that of all these devices while the run was watched.
    """

    num_cores: int
    other_cores: float | None = None
    devices: tuple[str, ...] = ()
    clock_limits_mhz: tuple[int, ...] = ()
    gpu_utilisation: tuple[float | None, ...] = ()
    energy_j: float | None = None


class HostWatch:
    """Watches one run: a `Start`, so that it knows the ranks, to be called now and then, and closed.

    Looks at the machine at most every `every_s`; a call in between costs next to nothing.
    """

    def __init__(self, path: Path, *, start: Start = Kept, every_s: float = EVERY_S) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._start = start
        self._every_s = every_s
        self._cores = Cores()
        self._work: dict[int, Work] = {}
        self._work_s: dict[int, float | None] = {}
        self._gpus: list[Gpu] = []
        self._visible: list[str] = []
        self._last: _Read | None = None
        self._other_s = self._seconds = 0.0
        self._looked_at = 0.0

    def __call__(self, arguments: Sequence[str], env: Mapping[str, str], logs: Path) -> Process:
        """Start a rank, and count its work, and that of all below it, as the run's own."""
        process = self._start(arguments, env, logs)
        rank = int(env["LOCAL_RANK"])
        if rank in self._work:  # a second try: the ranks of the first are gone
            self._work[rank].close()
        self._work[rank], self._work_s[rank] = Work(process.pid), 0.0
        self._visible = visible_gpus(env)
        return process

    def look(self, now: float | None = None) -> None:
        """Write a line if it is time for one; the first call is where the run begins."""
        now = time.monotonic() if now is None else now
        if self._last is not None and now - self._looked_at < self._every_s:
            return
        self._looked_at = now
        if self._last is None:
            self._gpus = gpus_of(self._visible[: len(self._work)])
        own_s = self._own(now)
        read = _Read(at_s=now, busy_s=self._cores.busy_s(), watcher_s=time.process_time())
        if self._last is not None:
            self._write(self._last, read, own_s)
        self._last = read

    def close(self) -> HostFacts:
        """What was seen; no line is added any more."""
        self._file.close()
        for work in self._work.values():
            work.close()
        energies = [gpu.energy_j() for gpu in self._gpus]
        known = [each for each in energies if each is not None]
        limits = [gpu.clock_limit_mhz for gpu in self._gpus]
        facts = HostFacts(
            num_cores=self._cores.num,
            other_cores=max(0.0, self._other_s / self._seconds) if self._seconds else None,
            devices=tuple(gpu.name for gpu in self._gpus)
            or tuple(gpu_models(self._visible[: len(self._work)])),
            clock_limits_mhz=() if None in limits else tuple(limit for limit in limits if limit is not None),
            gpu_utilisation=tuple(fmean(gpu.busy) if gpu.busy else None for gpu in self._gpus),
            energy_j=sum(known) if known and len(known) == len(energies) else None,
        )
        for gpu in self._gpus[:1]:
            gpu.close()
        self._gpus = []
        return facts

    def _own(self, now: float) -> float | None:
        """Processor time of the ranks since the last look; None if one has ended, and its last is lost."""
        total, is_whole = 0.0, True
        for rank, last in self._work_s.items():
            if last is not None:
                self._work_s[rank] = found = self._work[rank].seconds(now)
                is_whole &= found is not None
                total += 0.0 if found is None else found - last
        return total if is_whole else None

    def _write(self, last: "_Read", read: "_Read", own_s: float | None) -> None:
        seconds = read.at_s - last.at_s
        row: dict[str, object] = {"at_s": read.at_s, "busy_cores": None, "own_cores": None}
        if last.busy_s is not None and read.busy_s is not None:
            busy_s = read.busy_s - last.busy_s
            row["busy_cores"] = round(busy_s / seconds, 4)
            if own_s is not None:
                row["own_cores"] = round(own_s / seconds, 4)
                self._other_s += busy_s - own_s - (read.watcher_s - last.watcher_s)
                self._seconds += seconds
        if self._gpus:
            seen = [gpu.look(seconds) for gpu in self._gpus]
            row |= {"gpu": [each.busy for each in seen], "gpu_w": [each.power_w for each in seen]}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


@dataclass(frozen=True, kw_only=True)
class _Read:
    """Clocks at one look: of the wall, of all work on our cores, and of this process."""

    at_s: float
    busy_s: float | None
    watcher_s: float
