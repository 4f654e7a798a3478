import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from samestep.launch import stack
from samestep.launch.stack import Frame, Question, forks_of, frames_of, offers

PURELIB = sysconfig.get_path("purelib")

DUMP = f'''Thread 0x00007f10 [pin] (most recent call first):
  File "{PURELIB}/torch/utils/data/_utils/pin_memory.py", line 32 in do_one_step

Current thread 0x00007f20 [python] (most recent call first):
  File "/home/me/my data/set.py", line 12 in __getitem__
  File "{PURELIB}/torch/utils/data/dataloader.py", line 733 in __next__
  File "{Path(stack.__file__).parent.parent}/rank.py", line 50 in main
  File "<frozen runpy>", line 88 in _run_code

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x48 [0x5c]
'''


def test_frames_are_those_of_the_main_thread_innermost_last():
    frames = frames_of(DUMP)
    assert [frame.function for frame in frames] == ["_run_code", "main", "__next__", "__getitem__"]
    assert [frame.is_users for frame in frames] == [False, False, False, True]
    assert [str(frame) for frame in frames[1:]] == [
        "samestep/rank.py:50 in main",
        "torch/utils/data/dataloader.py:733 in __next__",
        "/home/me/my data/set.py:12 in __getitem__",
    ]


def test_without_a_current_thread_the_first_one_of_the_process_counts_which_is_written_last():
    frames = frames_of(DUMP.replace("Current thread 0x", "Thread 0x"))
    assert frames[-1].function == "__getitem__"
    assert frames_of("") == []
    assert frames_of("Current thread 0x1 (most recent call first):\n  <no Python frame>\n") == []


def test_a_line_of_the_users_is_shown_with_its_text(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("a = 1\nb = slow(a)\n")
    assert str(Frame(path=str(path), line=2, function="f")) == f"{path}:2 in f: b = slow(a)"


def test_who_does_not_offer_its_stack_is_not_asked_since_that_would_end_it(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1
    )
    try:
        child.stdout.readline()
        assert not offers(child.pid)
        question = Question(child.pid, tmp_path / "stack.txt")
        time.sleep(0.1)
        assert question.answer() is None
        assert question.answer(is_late=True) == []
        assert child.poll() is None
        # the control: the signal by itself does
        os.kill(child.pid, stack.SIGNAL)
        assert child.wait(timeout=10) == -stack.SIGNAL
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_forks_are_known_from_other_children(tmp_path):
    code = (
        "import os, pathlib, subprocess, sys, time\n"
        "from samestep.launch import stack\n"
        "stack.offer(pathlib.Path(sys.argv[1]))\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "fork = os.fork() or time.sleep(60)\n"
        "print(fork, flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "s")], stdout=-1, start_new_session=True
    )
    try:
        fork = int(child.stdout.readline())
        end = time.monotonic() + 10
        # a child that is about to run another program is still a fork for a moment
        while forks_of(child.pid) != [fork]:
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert forks_of(child.pid) == []
