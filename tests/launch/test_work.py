"""Processor time of real families of processes, looked at often."""

import time
from pathlib import Path

import pytest

from samestep.launch import work as module
from samestep.launch.family import cpu_s
from samestep.launch.work import FIND_S, Work

SPIN = "import time\nuntil = time.process_time() + {}\nwhile time.process_time() < until: pass\n"
IDLE = "import time; time.sleep(60)"


def test_work_counts_all_below_and_those_that_ended(started):
    burn = SPIN.format(0.3)
    process = started(
        f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
        f"child = subprocess.Popen([sys.executable, '-c', {burn + 'time.sleep(60)'!r}])\n"
        "time.sleep(60)"
    )
    work, clock = Work(process.pid), 0.0
    assert work.seconds(clock) is not None
    deadline, seen = time.monotonic() + 20, [0.0]
    while seen[-1] < 0.6 and time.monotonic() < deadline:
        clock += FIND_S / 3
        seen.append(work.seconds(clock))
        time.sleep(0.02)
    assert seen == sorted(seen) and seen[-1] == pytest.approx(cpu_s(process.pid), abs=0.1)
    process.kill()
    process.wait()
    assert work.seconds(clock + FIND_S) is None
    work.close()


def test_the_family_is_found_each_time_in_the_first_second_and_once_a_second_after(started, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "descendants", lambda pid: asked.append(pid) or set())
    work = Work(started(IDLE).pid)
    began = 1000.0  # a clock may have begun anywhere
    for part in range(11):
        work.seconds(began + part * FIND_S / 10)
    assert len(asked) == 11
    for part in range(11, 41):
        work.seconds(began + part * FIND_S / 10)
    assert len(asked) == 11 + 3
    work.close()


def test_files_of_those_that_ended_are_closed(started):
    burn = SPIN.format(0.1)
    process = started(
        f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\ntime.sleep(60)"
    )
    before, work, clock = open_files(), Work(process.pid), 0.0
    most, deadline = 0, time.monotonic() + 20
    while not (most == 2 and open_files() - before == 1) and time.monotonic() < deadline:
        clock += FIND_S
        work.seconds(clock)
        most = max(most, open_files() - before)
        time.sleep(0.01)
    assert (most, open_files() - before) == (2, 1)
    work.close()
    assert open_files() == before


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_process_that_is_not_there():
    work = Work(2**22 + 1)  # beyond the largest number that Linux gives
    assert work.seconds(0.0) is None
    work.close()
