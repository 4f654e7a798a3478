"""The kinds of faults: each starts a run, does something to it, and hands it back to be brought to its end.

What a fault must make the run do or say is asserted here; that the result is the same, by the campaign.
"""

import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.faults.attempt import PLACES, Attempt, Place
from benchmarks.faults.training import DATA, FAULT, FULL
from samestep.launch.roll import Started
from samestep.record import Record

Victim = Literal["rank", "member", "host", "launcher"]
WORLDS = ("1:2", "2", "2", "1:3", "2:3", "3")
_CLOCK = Path(__file__).with_name("clock")


@dataclass
class Round:
    """One run and the faults that it went through."""

    out: Path
    chance: random.Random
    worlds: tuple[str, ...] = WORLDS
    done: list[tuple[str, Place | None]] = field(default_factory=list)
    """Each fault, and where in the run it struck."""
    attempts: list[Attempt] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Processes, locks and ports that stayed behind."""

    def start(self, *words: str, gpus: str = "", env: dict[str, str] | None = None) -> Attempt:
        """The run's first attempt, or a further one on perhaps another number of ranks."""
        attempt = Attempt(
            self.out,
            *words,
            gpus=gpus or self.chance.choice(self.worlds),
            is_first=not (self.out / "job.json").exists(),
            env=env,
        )
        self.attempts.append(attempt)
        return attempt

    def note(self, fault: str, place: Place | None = None) -> None:
        self.done.append((fault, place))

    def ended(self) -> int:
        """The exit code of the attempt under way, after a look at what it left behind."""
        attempt = self.attempts[-1]
        code = attempt.wait()
        self.left += attempt.leftovers()
        return code

    def finish(self) -> None:
        """Bring the run to its end, without further faults."""
        code = self.ended()
        while code != 0:
            if len(self.attempts) > 8:
                raise AssertionError(f"it does not come to an end: {self.attempts[-1].said[-1000:]}")
            self.go_on()
            code = self.ended()

    def go_on(self) -> Attempt:
        """Resume without ranks to spare, on as many as any world has, or fewer."""
        return self.start(gpus=str(self.chance.randint(1, max(int(world[-1]) for world in self.worlds))))


def kill(
    turn: Round, *, times: int, victims: tuple[Victim, ...] = ("rank",), places: tuple[Place, ...] = PLACES
) -> None:
    """SIGKILL, time after time, of processes of the run at random or chosen moments."""
    attempt = _elastic(turn, times)
    for _ in range(times):
        victim = turn.chance.choice(victims)
        place = turn.chance.choice((None, *places))
        if not _kill_one(turn, attempt, victim, place):
            if attempt.is_running:
                continue
            code = turn.ended()
            if code == 0:
                return
            attempt = _elastic(turn, times)
        elif victim in ("host", "launcher"):
            code = turn.ended()
            assert code == (-signal.SIGKILL if victim == "launcher" else 2), (code, attempt.said[-500:])
            attempt = _elastic(turn, times)


def _elastic(turn: Round, times: int) -> Attempt:
    gpus = turn.chance.choice(turn.worlds)
    # without a colon no rank can be missed; the loss of one may take two rounds
    return turn.start(*([] if ":" in gpus else ["--restarts", str(2 * times)]), gpus=gpus)


def _kill_one(turn: Round, attempt: Attempt, victim: Victim, place: Place | None) -> bool:
    """Kill a process when a rank has come to `place`, or at any time; whether one was killed."""
    chance = turn.chance
    if victim in ("host", "launcher") and place is None:
        # also before there are ranks
        time.sleep(chance.uniform(0.0, 4.0))
        return _strike(turn, attempt, victim, None)
    if not attempt.wait_until(lambda: bool(attempt.ranks())):
        return False
    if place is None:
        time.sleep(chance.uniform(0.0, 3.0))
        ranks = attempt.ranks()
        return bool(ranks) and _strike(turn, attempt, victim, chance.choice(ranks))
    for _ in range(20):
        if not _is_reached(attempt, place, chance):
            return False
        there = [rank for rank in attempt.ranks() if attempt.place_of(rank) == place]
        if there and _strike(turn, attempt, victim, chance.choice(there), place):
            return True
    return False


def _is_reached(attempt: Attempt, place: Place, chance: random.Random) -> bool:
    """Wait for a rank to be at `place`, after some others have passed it."""
    if place in ("saving", "evaluation"):
        if not attempt.wait_until(lambda: any(attempt.place_of(r) == "steps" for r in attempt.ranks())):
            return False
        time.sleep(chance.uniform(0.0, 0.6))
    is_there = attempt.wait_until(
        lambda: any(attempt.place_of(r) == place for r in attempt.ranks()), every_s=0.0005
    )
    if place == "start-up":
        time.sleep(chance.uniform(0.0, 1.5))
    elif place == "steps":
        time.sleep(chance.uniform(0.0, 0.3))
    return is_there


def _strike(
    turn: Round, attempt: Attempt, victim: Victim, rank: Started | None, only_in: Place | None = None
) -> bool:
    """Kill a rank, where it is still at the place that is meant, or a process above it."""
    before = attempt.rounds
    if victim == "rank":
        assert rank is not None
        # it is held for a moment, so that where it dies is known and not guessed
        if not attempt.hold(rank):
            return False
        place: Place | None = attempt.place_of(rank)
        if only_in not in (None, place):
            attempt.signal(rank.pid, signal.SIGCONT)
            return False
        attempt.signal(rank.pid, signal.SIGKILL)
    else:
        ranks = attempt.ranks()
        place = attempt.place_of(ranks[0]) if ranks else "start-up"
        pid = attempt.process.pid if victim == "launcher" else attempt.host()
        if victim == "member":
            assert rank is not None
            pid = attempt.member_of(rank)
        if not attempt.signal(pid, signal.SIGKILL):
            return False
    turn.note(f"SIGKILL of {'the ' if victim in ('host', 'launcher') else 'a '}{victim}", place)
    # sometimes the next fault comes before this one is dealt with
    if victim in ("rank", "member") and turn.chance.random() < 0.8:
        attempt.wait_until(lambda: attempt.rounds > before, every_s=0.02)
    return True


def stop(turn: Round, *, goes_on: bool) -> None:
    """SIGSTOP of a rank: it must be named, and then be continued, or killed and done without."""
    attempt = turn.start("--stall-after", "2", *([] if goes_on else ["--restarts", "2"]), gpus="2")
    assert _is_reached(attempt, "steps", turn.chance), attempt.said
    rank = turn.chance.choice(attempt.ranks())
    assert attempt.hold(rank), "the rank had ended"
    place = attempt.place_of(rank)
    words = f"it is stopped (SIGSTOP; kill -CONT {rank.pid} lets it go on)"
    assert attempt.wait_until(lambda: words in _oneline(attempt.said), every_s=0.05), attempt.said
    [finding] = [row for row in Record.read(turn.out).findings() if row["cause"] == "rank-stalled"]
    evidence = finding["evidence"]
    assert (evidence["rank"], evidence["state"]) == (rank.rank, "stopped"), finding
    attempt.signal(rank.pid, signal.SIGCONT if goes_on else signal.SIGKILL)
    if goes_on:
        assert attempt.wait_until(lambda: f"Rank {rank.rank} goes on after" in attempt.said, every_s=0.05)
    turn.note(f"SIGSTOP of a rank, then {'SIGCONT' if goes_on else 'SIGKILL'}", place)


def raise_in_data(turn: Round, *, gpus: str = "") -> None:
    """An exception in the data set of one rank: the run ends and names it, and goes on when it is gone."""
    attempt = turn.start(gpus=gpus, env={FAULT: DATA})
    assert turn.ended() == 2, attempt.said
    rank = int(attempt.gpus[-1]) - 1
    said = _oneline(attempt.said)
    assert f"Rank {rank} failed: OSError: the disk with the examples is gone" in said, attempt.said
    assert attempt.result["restarts"] == 0, "what would happen again was tried again"
    turn.note("exception in the data set of a rank", "steps")


def fill_disk(turn: Round, *, gpus: str = "") -> None:
    """Half a save is written, and then there is no room for the rest."""
    attempt = turn.start(gpus=gpus, env={FAULT: FULL})
    assert turn.ended() == 2, attempt.said
    said = _oneline(attempt.said)
    assert "could not be written" in said and "File too large" in said, attempt.said
    assert attempt.checkpoints() and not attempt.is_saving
    turn.note("short write, then no room, in a save", "saving")


def err(turn: Round) -> None:
    """Both of these, one after the other."""
    raise_in_data(turn)
    fill_disk(turn, gpus="1")


def damage(turn: Round) -> None:
    """The newest checkpoint is cut off or has a flipped bit: the one before is taken, and that is said."""
    attempt = turn.start(gpus="2")
    assert attempt.wait_until(lambda: len(attempt.checkpoints()) > 1, every_s=0.02)
    time.sleep(turn.chance.uniform(0.0, 0.5))
    assert _strike(turn, attempt, "launcher", None), attempt.said
    turn.ended()
    *_, before, newest = attempt.checkpoints()
    file = turn.chance.choice(sorted(newest.iterdir()))
    data = bytearray(file.read_bytes())
    how = turn.chance.choice(("cut off", "with a flipped bit"))
    if how == "cut off":
        del data[turn.chance.randrange(len(data)) :]
    else:
        # not the bit that makes an "e" of a number an "E", which changes nothing
        data[turn.chance.randrange(len(data))] ^= 1 << turn.chance.randrange(5)
    file.write_bytes(data)
    turn.note(f"newest checkpoint {how}")
    attempt = turn.go_on()
    assert turn.ended() == 0, attempt.said
    assert f"Taking {before.name} instead" in _oneline(attempt.said), attempt.said


def jump_clock(turn: Round) -> None:
    """The wall clock goes back and forth by hours, for all processes of the run; and a rank is killed."""
    path = os.pathsep.join((str(_CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])))
    attempt = turn.start("--restarts", "6", env={"PYTHONPATH": path})
    for _ in range(2):
        _kill_one(turn, attempt, "rank", turn.chance.choice(("start-up", "steps")))
    turn.ended()
    turn.note("clock jumps by hours, all along")
    events = [row["time"] for row in Record.read(turn.out).events()]
    assert events != sorted(events), "the clock did not jump"


def _oneline(text: str) -> str:
    return " ".join(text.split())
