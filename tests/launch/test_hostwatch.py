"""The machine as seen by one who starts a run; real processes, and a driver that is pretended."""

import itertools
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from samestep.launch import cores as cores_module
from samestep.launch import hostwatch as module
from samestep.launch.cores import Cores
from samestep.launch.family import cpu_s
from samestep.launch.gpus import gpus_of
from samestep.launch.hostwatch import HostWatch

SPIN = "import time\nuntil = time.process_time() + {}\nwhile time.process_time() < until: pass\n"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def rank_of(process, rank=0, env=None):
    """What a `HostWatch` is given for a `Start`, and the call that starts the rank."""
    return (lambda arguments, env, logs: process), ([], {"LOCAL_RANK": str(rank), **(env or {})}, Path())


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def watch(path, process, seconds, **settings):
    start, call = rank_of(process)
    host = HostWatch(path, start=start, **settings)
    assert host(*call) is process
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        host.look()
        time.sleep(0.02)
    return host.close()


def test_work_of_the_run_and_of_others_is_told_apart(tmp_path, started):
    own, other = started(SPIN.format(60)), started(SPIN.format(60))
    time.sleep(0.3)
    before = [cpu_s(own.pid), cpu_s(other.pid), time.monotonic()]
    facts = watch(tmp_path / "below/host.jsonl", own, 1.5)
    seconds = time.monotonic() - before[2]
    own_cores, other_cores = (
        (cpu_s(p.pid) - b) / seconds for p, b in zip((own, other), before, strict=False)
    )
    found = rows(tmp_path / "below/host.jsonl")
    assert 4 <= len(found) <= 6 and all(set(row) == {"at_s", "busy_cores", "own_cores"} for row in found)
    gaps = [b["at_s"] - a["at_s"] for a, b in itertools.pairwise(found)]
    assert min(gaps) >= 0.25
    # clocks that count in ticks are wrong by one at each end; the last quarter of a second is not in a line
    seen = sum(row["own_cores"] for row in found) / len(found)
    assert abs(seen - own_cores) < 0.25 + 4 * TICK_S / 1.0
    assert facts.other_cores > 0.5 * other_cores  # others are busy here as well: more is right
    assert all(row["busy_cores"] > row["own_cores"] - 2 * TICK_S / 0.25 for row in found)
    assert facts.num_cores == len(os.sched_getaffinity(0)) and facts.devices == () and facts.energy_j is None


def test_the_line_in_which_a_rank_ends_has_no_work_of_its_own(tmp_path, started):
    process = started("import time; time.sleep(0.6)")
    start, call = rank_of(process)
    host = HostWatch(tmp_path / "host.jsonl", start=start, every_s=0.05)
    host(*call)
    while process.poll() is None:
        host.look()
        time.sleep(0.06)
    for _ in range(3):
        host.look()
        time.sleep(0.06)
    host.close()
    own = [row["own_cores"] for row in rows(tmp_path / "host.jsonl")]
    assert own.count(None) == 1 and own[0] is not None and own[-1] == 0.0


def test_looking_costs_less_than_two_thousandths_of_a_core(tmp_path, started):
    process = started("import os, time\nos.fork()\ntime.sleep(60)")
    start, call = rank_of(process)
    host = HostWatch(tmp_path / "host.jsonl", start=start)
    host(*call)
    time.sleep(0.3)
    costs = []
    for _ in range(3):  # caches are cold, and others busy
        began = time.thread_time()
        for number in range(40):
            host.look(float(number) * 0.25 + 100 * len(costs))
        costs.append((time.thread_time() - began) / (40 * 0.25))
    host.close()
    assert min(costs) < 0.002, costs


def test_a_look_before_its_time_does_nothing(tmp_path, started):
    start, call = rank_of(started("import time; time.sleep(60)"))
    host = HostWatch(tmp_path / "host.jsonl", start=start)
    host(*call)
    for now in (10.0, 10.1, 10.2, 10.3, 10.31):
        host.look(now)
    assert [row["at_s"] for row in rows(tmp_path / "host.jsonl")] == [10.3]
    host.close()


def test_a_run_that_was_never_looked_at(tmp_path):
    facts = HostWatch(tmp_path / "host.jsonl").close()
    assert facts.other_cores is None and rows(tmp_path / "host.jsonl") == []


def test_a_system_without_proc(tmp_path, monkeypatch, started):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(module, "Cores", lambda: Cores(stat=tmp_path / "no", own_groups=tmp_path / "no"))
    facts = watch(tmp_path / "host.jsonl", started("import time; time.sleep(60)"), 0.2, every_s=0.05)
    assert facts.other_cores is None and facts.num_cores == os.cpu_count()
    found = rows(tmp_path / "host.jsonl")
    assert found and all(row["busy_cores"] is row["own_cores"] is None for row in found)


@pytest.mark.parametrize(
    ("groups", "limit", "usage"),
    [
        (
            "0::/a/b\n",
            ("a/b/cpu.max", "50000 100000"),
            ("a/b/cpu.stat", "nr_periods 1\nusage_usec 2500000\n"),
        ),
        ("0::/a/b\n", ("a/cpu.max", "50000 100000"), ("a/cpu.stat", "usage_usec 2500000\nuser_usec 1\n")),
        (
            "4:cpu,cpuacct:/a\n0::/\n",
            ("cpu/a/cpu.cfs_quota_us", "50000"),
            ("cpu/a/cpuacct.usage", "2500000000"),
        ),
    ],
)
def test_a_control_group_that_limits_cores(tmp_path, groups, limit, usage):
    (tmp_path / "own").write_text(groups)
    for name, text in (limit, usage, (str(Path(limit[0]).with_name("cpu.cfs_period_us")), "100000")):
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    found = Cores(groups=tmp_path / "groups", own_groups=tmp_path / "own")
    assert found.num == 1 and found.busy_s() == 2.5
    (tmp_path / "groups" / limit[0]).write_text("-1" if "quota" in limit[0] else "max 100000")
    free = Cores(groups=tmp_path / "groups", own_groups=tmp_path / "own")
    assert free.num == len(os.sched_getaffinity(0)) and free.busy_s() != 2.5


def test_only_cores_that_may_be_used_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(cores_module.os, "sched_getaffinity", lambda pid: {1, 12})
    text = "cpu 9 9 9 9 9 9 9 9 9 9\n" + "".join(
        f"cpu{n} {n}00 1 2 900 900 3 4 5 7 7\n" for n in (0, 1, 2, 12)
    )
    (tmp_path / "stat").write_text(text + "intr 5 5\nctxt 5\n")
    found = Cores(stat=tmp_path / "stat", own_groups=tmp_path / "no")
    assert found.num == 2 and found.busy_s() == pytest.approx((100 + 1200 + 2 * (1 + 2 + 3 + 4 + 5)) * TICK_S)
    (tmp_path / "stat").write_text("nothing of the kind")
    assert found.busy_s() is None


class Driver(ModuleType):
    """As much of `pynvml` as is used; a second device of another kind that tells less."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.num_open, self.energy_mj = 0, 5_000_000

    def nvmlInit(self):
        self.num_open += 1

    def nvmlShutdown(self):
        self.num_open -= 1

    def nvmlDeviceGetHandleByIndex(self, index):
        if index > 1:
            raise self.NVMLError("no such device")
        return index

    def nvmlDeviceGetHandleByUUID(self, name):
        return {"GPU-b": 1}[name]

    def nvmlDeviceGetName(self, handle):
        return ("Model A", b"Model B")[handle]

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=(80, 20)[handle], memory=3)

    def nvmlDeviceGetPowerUsage(self, handle):
        return (150_000, 60_000)[handle]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if handle == 1:
            raise self.NVMLError("not supported")
        self.energy_mj += 7_000
        return self.energy_mj

    def nvmlDeviceGetApplicationsClock(self, handle, kind):
        raise self.NVMLError("not supported")

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        assert kind == self.NVML_CLOCK_SM
        return (1410, 1980)[handle]


def test_gpus_by_rank(tmp_path, monkeypatch, started):
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(module, "visible_gpus", lambda env: ["0", "GPU-b", "7"])
    process = started("import time; time.sleep(60)")
    start, _ = rank_of(process)
    host = HostWatch(tmp_path / "host.jsonl", start=start)
    for rank in (0, 1):
        host(*rank_of(process, rank)[1])
    for number in range(5):
        host.look(number * 0.5)
    facts = host.close()
    assert rows(tmp_path / "host.jsonl")[-1] | {"busy_cores": 0, "own_cores": 0} == {
        "at_s": 2.0, "busy_cores": 0, "own_cores": 0, "gpu": [0.8, 0.2], "gpu_w": [150.0, 60.0],
    }  # fmt: skip
    assert facts.devices == ("Model A", "Model B") and facts.clock_limits_mhz == (1410, 1980)
    assert facts.gpu_utilisation == pytest.approx((0.8, 0.2))
    # the first one's counter between two reads; the second has none: 60 W for 2 s
    assert facts.energy_j == pytest.approx(7.0 + 60.0 * 2.0)
    assert driver.num_open == 0


def test_no_gpus_without_the_package_a_driver_or_the_device(monkeypatch):
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert gpus_of([]) == [] and gpus_of(["0", "5"]) == [] and driver.num_open == 0
    assert [gpu.name for gpu in gpus_of(["1"])] == ["Model B"]
    monkeypatch.setattr(driver, "nvmlInit", lambda: (_ for _ in ()).throw(Driver.NVMLError("no driver")))
    assert gpus_of(["0"]) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus_of(["0"]) == []
