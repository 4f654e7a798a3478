"""Real processes that tell their phases as ranks do, each in one kind of trouble or in none."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep import phase
from samestep.launch.stack import Frame, offers
from samestep.launch.stall import GoesOn, Stall, Stalls, state_of
from samestep.record import rank_folder

AFTER_S = 0.5

RANK = """
import os, pathlib, sys, time
from samestep import phase
from samestep.launch import stack

own = pathlib.Path(sys.argv[1])

def read_slowly():
    os.read(os.pipe()[0], 1)  # nothing ever comes

def count_in_c():
    sum(range(10**12))

def sleeps_in_a_call():
    phase.enter("data", step=41)
    read_slowly()

def is_busy_in_c():
    phase.enter("forward", step=41)
    count_in_c()

def waits():
    phase.enter("backward", step=41)
    with phase.waiting():
        read_slowly()

def moves_slowly():
    for step in range(1, 10**6):
        phase.enter("data", step=step)
        time.sleep(0.1)

def is_in_its_own_code():
    phase.enter("other", step=41)
    read_slowly()

def is_late_once():
    phase.enter("data", step=41)
    time.sleep(1.5)
    phase.enter("forward")
    moves_slowly()

def has_workers():
    if os.fork() == 0:
        fetch()
    phase.enter("data", step=41)
    read_slowly()

def fetch():
    load_example()

def load_example():
    read_slowly()

def ends():
    (own / "done").touch()
    sys.exit()

phase.open(own / "phase")
if "--silent" not in sys.argv:
    stack.offer(own / "stack.txt")
globals()[sys.argv[2]]()
"""


class Ranks:
    """Processes in the place of ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "their_code.py"
        self.script.write_text(RANK)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.stalls = Stalls(folder, after_s=AFTER_S)

    def start(self, *kinds: str) -> None:
        """Start one rank of each kind, and wait until they are where they are to be."""
        for kind in kinds:
            own = rank_folder(self.folder, len(self.processes))
            own.mkdir(parents=True)
            command = [sys.executable, str(self.script), str(own), *kind.split()]
            # a group of its own, so that the workers it forks can be ended with it
            self.processes.append(subprocess.Popen(command, start_new_session=True))
        end = time.monotonic() + 30
        while not all(
            self._is_in_a_step(rank) or self.has_ended(rank) for rank in range(len(self.processes))
        ):
            assert time.monotonic() < end
            time.sleep(0.01)

    def _is_in_a_step(self, rank: int) -> bool:
        told = phase.read(rank_folder(self.folder, rank) / "phase")
        # who is to wait passes through backward
        return told is not None and told.step is not None and told.name != "backward"

    def has_ended(self, rank: int) -> bool:
        return self.processes[rank].poll() is not None

    def pid(self, rank: int) -> int:
        return self.processes[rank].pid

    def watch(
        self, seconds: float, *, until: int | None = None, size: int | None = None
    ) -> list[Stall | GoesOn]:
        """What is told in that time, or until that many things were, of the world of that size."""
        news: list[Stall | GoesOn] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end and (until is None or len(news) < until):
            news += self.stalls.look(time.monotonic(), range(size or len(self.processes)))
            time.sleep(0.02)
        return news


@pytest.fixture
def ranks(tmp_path):
    ranks = Ranks(tmp_path)
    yield ranks
    for process in ranks.processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def functions(stall: Stall) -> list[str]:
    return [frame.function for frame in stall.stack]


def test_one_that_sleeps_in_a_system_call_is_named_and_those_that_wait_for_it_are_not(ranks):
    ranks.start("waits", "sleeps_in_a_call", "waits")
    (stall,) = ranks.watch(20, until=1)
    assert (stall.rank, stall.state, stall.waiting, stall.is_mutual) == (1, "sleeping", (0, 2), False)
    assert str(stall.phase) == "data of step 41"
    assert stall.seconds >= AFTER_S
    assert functions(stall) == ["<module>", "sleeps_in_a_call", "read_slowly"]
    assert stall.sentence.startswith("Rank 1 has been in the phase data of step 41 for ")
    line = RANK[: RANK.index("os.read(")].count("\n") + 1
    assert (
        f" while 2 others wait: it sleeps in a system call below their_code.py:{line} in read_slowly."
        in stall.sentence
    )
    assert stall.lines[-1].startswith(f"> {ranks.script}:{line} in read_slowly: os.read(")
    assert stall.told == [stall.sentence, *stall.lines]
    finding = stall.finding
    assert (finding.cause, finding.message) == ("rank-stalled", stall.sentence)
    assert {"rank": 1, "phase": "data", "step": 41, "state": "sleeping"}.items() <= finding.evidence.items()
    assert finding.evidence["stack"] == stall.lines
    # once, not at every look; and who was asked for a stack lives on
    assert ranks.watch(1.0) == []
    assert [process.poll() for process in ranks.processes] == [None] * 3


def test_one_that_is_busy_in_c_is_named_with_its_stack(ranks):
    ranks.start("is_busy_in_c", "waits")
    (stall,) = ranks.watch(20, until=1)
    assert (stall.rank, stall.state, str(stall.phase)) == (0, "running", "forward of step 41")
    assert functions(stall)[-1] == "count_in_c"
    assert "while 1 other waits: it is busy below their_code.py" in stall.sentence


@pytest.mark.parametrize("kind", ["moves_slowly", "waits"])
def test_one_that_was_stopped_is_named_whatever_it_did_and_goes_on(ranks, kind):
    ranks.start("waits", kind)
    os.kill(ranks.pid(1), signal.SIGSTOP)
    (stall,) = ranks.watch(20, until=1)
    assert (stall.rank, stall.state, stall.waiting, stall.stack) == (1, "stopped", (0,), ())
    assert stall.sentence.endswith(
        f"while 1 other waits: it is stopped (SIGSTOP; kill -CONT {ranks.pid(1)} lets it go on)."
    )
    assert stall.finding.fix == f"Let it go on: kill -CONT {ranks.pid(1)}."
    os.kill(ranks.pid(1), signal.SIGCONT)
    if kind == "moves_slowly":
        (end,) = ranks.watch(5, until=1)
        assert isinstance(end, GoesOn)
        assert end.rank == 1
        assert end.seconds >= stall.seconds
        assert end.told == [f"Rank 1 goes on after {end.seconds:.0f} s."]
        assert ranks.watch(1.0) == []


def test_one_that_is_slow_but_moves_is_left_alone_and_so_are_those_that_wait_for_it(ranks):
    ranks.start("waits", "moves_slowly", "waits")
    assert ranks.watch(4 * AFTER_S) == []


def test_code_for_which_nobody_waits_may_take_its_time(ranks):
    ranks.start("is_in_its_own_code", "sleeps_in_a_call")
    assert ranks.watch(4 * AFTER_S) == []
    # but a phase of a step not for ever, and the user's own code, which is no phase of a step, even so
    (stall,) = ranks.watch(20, until=1)
    assert (stall.rank, stall.waiting, stall.seconds >= 10 * AFTER_S) == (1, (), True)
    assert ranks.watch(0.5) == []


def test_the_loader_worker_that_a_rank_waits_for_is_named(ranks):
    ranks.start("waits", "has_workers")
    (stall,) = ranks.watch(20, until=1)
    assert (stall.rank, stall.pid) == (1, ranks.pid(1))
    assert stall.worker not in (None, ranks.pid(1))
    assert functions(stall)[-3:] == ["fetch", "load_example", "read_slowly"]
    assert (
        f"its loader worker (pid {stall.worker}) sleeps in a system call below their_code.py"
        in stall.sentence
    )


def test_ranks_that_all_wait_are_all_named(ranks):
    ranks.start("waits", "waits")
    news = ranks.watch(20, until=2)
    assert sorted((stall.rank, stall.is_mutual) for stall in news) == [(0, True), (1, True)]
    assert all("all ranks wait for each other" in stall.sentence for stall in news)
    assert all(functions(stall)[-2:] == ["waits", "read_slowly"] for stall in news)


def test_one_that_ended_while_others_wait_is_named(ranks):
    ranks.start("waits", "ends")
    (stall,) = ranks.watch(20, until=1)
    assert (stall.rank, stall.state, stall.waiting) == (1, "gone", (0,))
    assert re.fullmatch(r"Rank 1 ended \d+ s ago while 1 other waits for it\.", stall.sentence)


def test_one_that_never_began_is_named(ranks):
    ranks.start("waits")
    (stall,) = ranks.watch(20, until=1, size=2)
    assert (stall.rank, stall.state, stall.phase, stall.waiting) == (1, "not begun", None, (0,))
    assert "Rank 1 has not begun after " in stall.sentence


def test_what_takes_long_again_and_again_is_told_once(ranks):
    ranks.start("waits", "is_late_once")
    first, second = ranks.watch(20, until=2)
    assert isinstance(first, Stall)
    assert isinstance(second, GoesOn)
    assert second.seconds == pytest.approx(1.5, abs=1.0)  # the sleep, and what a busy machine adds
    assert ranks.watch(2 * AFTER_S) == []


def test_one_that_offers_no_stack_is_named_without_it_and_not_killed(ranks):
    ranks.start("waits", "sleeps_in_a_call --silent")
    assert (offers(ranks.pid(0)), offers(ranks.pid(1))) == (True, False)
    (stall,) = ranks.watch(20, until=1)
    assert (stall.rank, stall.stack) == (1, ())
    assert stall.sentence.endswith("while 1 other waits: it sleeps in a system call.")
    assert ranks.processes[1].poll() is None


def test_state_of_a_process_that_waits_to_be_reaped_is_gone():
    child = subprocess.Popen([sys.executable, "-c", ""])
    end = time.monotonic() + 10
    while state_of(child.pid) != "gone":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert Path(f"/proc/{child.pid}").exists()
    child.wait()
    assert state_of(child.pid) == "gone"


def test_a_long_stack_is_cut_to_its_inner_end():
    stack = tuple(Frame(path="/home/me/deep.py", line=n, function=f"f{n}") for n in range(40))
    stall = Stall(rank=0, phase=None, seconds=1.0, state="running", pid=1, stack=stack)
    assert len(stall.lines) == 16
    assert stall.lines[0] == "  … 25 more"
    assert stall.lines[-1] == "> /home/me/deep.py:39 in f39"
