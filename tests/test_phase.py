import multiprocessing
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from samestep import phase


@pytest.fixture
def path(tmp_path):
    phase.open(tmp_path / "phase")
    yield tmp_path / "phase"
    phase.close()


def test_it_tells_the_phase_the_step_and_since_when(path):
    assert str(phase.read(path)) == "other (start-up)"
    before = time.monotonic()
    phase.enter("forward", step=12)
    told = phase.read(path)
    assert (told.name, told.detail, told.step, told.pid) == ("forward", None, 12, os.getpid())
    # a float of seconds keeps nanoseconds only to its 53 bits
    assert before - 1e-6 <= told.began_s <= time.monotonic() + 1e-6
    phase.enter("data", detail="evaluation")
    assert str(phase.read(path)) == "data (evaluation) of step 12"


def test_every_name_and_detail_comes_back(path):
    for name in get_args(phase.Name):
        for detail in (None, *get_args(phase.Detail)):
            phase.enter(name, step=2**40, detail=detail)
            told = phase.read(path)
            assert (told.name, told.detail, told.step) == (name, detail, 2**40)


def test_waiting_comes_back_to_what_was_before_also_after_an_exception(path):
    phase.enter("backward", step=3)
    with pytest.raises(KeyError), phase.waiting():
        with phase.waiting():
            assert phase.read(path).is_waiting
        assert phase.read(path).is_waiting
        raise KeyError
    assert str(phase.read(path)) == "backward of step 3"
    assert not phase.read(path).is_waiting


def test_without_open_nothing_happens(tmp_path):
    phase.close()
    phase.enter("forward", step=1)
    with phase.waiting():
        pass
    assert phase.read(tmp_path / "phase") is None


def test_another_process_reads_it_while_this_one_does_nothing(path):
    phase.enter("update", step=7)
    code = "import sys, pathlib, samestep.phase as p; print(p.read(pathlib.Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "update of step 7"


def test_a_forked_child_does_not_speak_for_its_rank(path):
    phase.enter("data", step=5)
    child = multiprocessing.get_context("fork").Process(target=phase.enter, args=("update",))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert str(phase.read(path)) == "data of step 5"


def test_what_is_left_of_a_process_that_ended_is_nothing(tmp_path):
    code = "import sys, pathlib, samestep.phase as p; p.open(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "phase")], check=True)
    assert (tmp_path / "phase").read_text().startswith("/proc/")
    assert phase.read(tmp_path / "phase") is None


def test_what_another_process_has_open_under_that_number_is_left_alone(tmp_path):
    read_end, write_end = os.pipe()
    os.write(write_end, bytes(24))
    (tmp_path / "phase").write_text(f"/proc/{os.getpid()}/fd/{read_end}\n")
    assert phase.read(tmp_path / "phase") is None
    assert os.read(read_end, 24) == bytes(24)
    os.close(read_end)
    os.close(write_end)


def test_a_torn_write_is_never_taken_for_a_phase(path):
    """Every mixture of the words of two writes is refused, or is one of the two."""
    place = Path(path.read_text().strip())
    phase.enter("data", step=40)
    old = place.read_bytes()
    time.sleep(1e-6)
    phase.enter("forward", step=41)
    new = place.read_bytes()
    true = {
        text: struct.unpack("=QQQ", words)[1] / 1e9
        for text, words in (("data of step 40", old), ("forward of step 41", new))
    }
    num_refused = 0
    for mixture in range(8):
        words = [(new if mixture >> i & 1 else old)[8 * i : 8 * i + 8] for i in range(3)]
        place.write_bytes(b"".join(words))
        told = phase.read(path)
        num_refused += told is None
        assert told is None or told.began_s == true[str(told)]
    # the control: without a check, all 8 would have been believed
    assert num_refused >= 4


def _change(path: Path, until: float) -> None:
    phase.open(path)
    while time.monotonic() < until:
        for step in range(1, 1000):
            # a reader can tell a mixture: odd steps are only ever in data, even ones in forward
            phase.enter("data" if step % 2 else "forward", step=step)


def test_a_reader_never_sees_a_mixture_while_another_process_writes(tmp_path):
    path = tmp_path / "phase"
    until = time.monotonic() + 0.7
    writer = multiprocessing.get_context("fork").Process(target=_change, args=(path, until))
    writer.start()
    seen = []
    while time.monotonic() < until - 0.1:
        told = phase.read(path)
        if told is not None and told.step is not None:
            seen.append(told)
    writer.join()
    assert len(seen) > 100
    assert len({told.step for told in seen}) > 10
    assert {(told.step % 2, told.name) for told in seen} <= {(1, "data"), (0, "forward")}


def test_it_costs_next_to_nothing(path):
    num_calls = 20_000
    began = time.perf_counter()
    for step in range(num_calls):
        phase.enter("forward", step=step)
    # about 0.6 µs on an idle machine; this one may be busy
    assert (time.perf_counter() - began) / num_calls < 20e-6
