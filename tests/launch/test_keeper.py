"""Real processes that do their best to outlive those that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep.launch.family import cpu_s, descendants

# a child that leaves its session, loses its parent, and heeds no signal that can be heeded
ESCAPE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        open("child", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists("child") or not open("child").read():
    time.sleep(0.01)
open("here", "w").write(str(os.getpid()))
"""
STAY = ESCAPE + "time.sleep(600)\n"


def keep(folder, text, parent=None):
    (folder / "script.py").write_text(text)
    command = [sys.executable, "-P", "-m", "samestep.launch.keeper", str(parent or os.getpid())]
    return subprocess.Popen([*command, sys.executable, "script.py"], cwd=folder, start_new_session=True)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def pids(folder):
    wait_until((folder / "here").exists)
    found = [int((folder / name).read_text()) for name in ("here", "child")]
    assert all(map(alive, found))
    return found


@pytest.mark.parametrize("ending, code", [("os._exit(3)", 3), ("pass", 0), ("os.kill(os.getpid(), 6)", -6)])
def test_it_ends_as_its_program_does_and_clears_up(tmp_path, ending, code):
    process = keep(tmp_path, ESCAPE + ending)
    process.wait(20)
    assert process.returncode == code
    assert not alive(int((tmp_path / "child").read_text()))


def test_without_a_keeper_the_child_would_live_on(tmp_path):
    (tmp_path / "script.py").write_text(ESCAPE)
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, timeout=20, check=True)
    child = int((tmp_path / "child").read_text())
    try:
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_asked_to_end_it_kills_all(tmp_path):
    process = keep(tmp_path, STAY)
    found = pids(tmp_path)
    assert set(found) <= set(descendants(process.pid))
    process.terminate()
    process.wait(20)
    assert process.returncode == -signal.SIGTERM and not any(map(alive, found))


def test_nothing_outlives_the_process_that_started_the_keeper(tmp_path):
    text = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import test_keeper, time
process = test_keeper.keep(Path("."), test_keeper.STAY)
time.sleep(600)
"""
    starter = subprocess.Popen([sys.executable, "-c", text], cwd=tmp_path)
    found = pids(tmp_path)
    starter.kill()
    starter.wait()
    wait_until(lambda: not any(map(alive, found)), 5.0)


def test_the_program_does_not_outlive_a_killed_keeper(tmp_path):
    process = keep(tmp_path, STAY)
    program, child = pids(tmp_path)
    process.kill()
    process.wait(20)
    try:
        wait_until(lambda: not alive(program), 5.0)
    finally:
        os.kill(child, signal.SIGKILL)  # nobody is left who could know of it


def test_a_parent_that_is_gone_already(tmp_path):
    process = keep(tmp_path, STAY, parent=1 if os.getpid() != 1 else 2)
    process.wait(20)
    assert process.returncode == 1 and not (tmp_path / "here").exists()


def test_a_command_that_is_not_there(tmp_path):
    command = [sys.executable, "-P", "-m", "samestep.launch.keeper", str(os.getpid()), "/no/such/program"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127 and "/no/such/program: No such file" in done.stderr


def test_processor_time_counts_children_that_ended(tmp_path):
    spin = "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass"
    text = f"""
import subprocess, sys, time
subprocess.run([sys.executable, "-c", {spin!r}])
open("here", "w")
time.sleep(600)
"""
    process = keep(tmp_path, text)
    try:
        wait_until((tmp_path / "here").exists)
        assert 0.25 < cpu_s(process.pid) < 5
    finally:
        process.terminate()
        process.wait(20)
    assert cpu_s(process.pid) is None
