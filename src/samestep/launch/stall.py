"""Stall: which rank makes the others wait, in which phase and since when, where in its code, and why.

Reads what ranks tell of their phases (`samestep.phase`) and what the system tells of their processes, and
judges. It does nothing about a stall: how long to wait is the user's to decide.

A rank that waits for others is a victim. The culprit is one that does not wait and has not moved while others
have waited. Ranks that are slow but move from phase to phase are left alone, and so are ranks that all do
something long for which nobody waits: only after a much longer time is that worth a word.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samestep import phase
from samestep.findings import Finding
from samestep.launch.stack import Frame, Question, forks_of
from samestep.phase import Phase
from samestep.record import rank_folder

AFTER_S = 30.0
_ALONE = 10
"""How many times as long a phase may take for which no other rank waits."""
_ANSWER_S = 2.0
_MOST_FRAMES = 15
_MOST_WORKERS = 8

State = Literal["running", "sleeping", "in the kernel", "stopped", "debugged", "gone", "not begun"]
_STATES: Mapping[str, State] = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel",
    "T": "stopped",
    "t": "debugged",
}
_HELD: tuple[State, ...] = ("stopped", "debugged")
_ABSENT: tuple[State, ...] = ("gone", "not begun")


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A rank that has not moved for `seconds`, for which the ranks `waiting` wait.

    With `is_mutual` it waits itself, as all ranks do, for each other. `worker` is the loader worker that the
    rank waits for, if one was found; then `state` and `stack` are the worker's. The stack has its innermost
    line last.
    """

    rank: int
    phase: Phase | None
    seconds: float
    state: State
    pid: int | None
    waiting: tuple[int, ...] = ()
    is_mutual: bool = False
    worker: int | None = None
    stack: tuple[Frame, ...] = ()

    @property
    def sentence(self) -> str:
        """What is so, and why, as far as that can be seen from outside."""
        others = f" while {_others(len(self.waiting))}" if self.waiting and not self.is_mutual else ""
        if self.state == "gone":
            return f"Rank {self.rank} ended {self.seconds:.0f} s ago{others} for it."
        if self.phase is None:
            return f"Rank {self.rank} has not begun after {self.seconds:.0f} s{others}."
        where = f"Rank {self.rank} has been in the phase {self.phase} for {self.seconds:.0f} s"
        if self.is_mutual:
            return f"{where}, and all ranks wait for each other: they have come to different places."
        return f"{where}{others}: {self._why}."

    @property
    def lines(self) -> list[str]:
        """The stack for a person, innermost last; `>` marks lines of the user's own files."""
        hidden = len(self.stack) - _MOST_FRAMES
        shown = [f"{'>' if frame.is_users else ' '} {frame}" for frame in self.stack[-_MOST_FRAMES:]]
        return [f"  … {hidden} more", *shown] if hidden > 0 else shown

    @property
    def told(self) -> list[str]:
        """The sentence and the stack."""
        return [self.sentence, *self.lines]

    @property
    def finding(self) -> Finding:
        """The same for the record."""
        return Finding(
            cause="rank-stalled",
            message=self.sentence,
            evidence={
                "rank": self.rank,
                "phase": self.phase.name if self.phase else "other",
                "detail": self.phase.detail if self.phase else None,
                "step": self.phase.step if self.phase else None,
                "seconds": round(self.seconds, 1),
                "state": self.state,
                "pid": self.pid,
                "worker": self.worker,
                "waiting": list(self.waiting),
                "stack": self.lines,
            },
            fix=self._fix,
        )

    @property
    def _why(self) -> str:
        pid = self.worker or self.pid
        who = "it" if self.worker is None else f"its loader worker (pid {pid})"
        if self.state == "stopped":
            return f"{who} is stopped (SIGSTOP; kill -CONT {pid} lets it go on)"
        if self.state == "debugged":
            return f"{who} is held by a debugger"
        if self.state == "in the kernel":
            return f"{who} waits in the kernel, for a disk or a device"
        doing = "is busy" if self.state == "running" else "sleeps in a system call"
        users = [frame for frame in self.stack if frame.is_users]
        place = (
            f" below {Path(users[-1].path).name}:{users[-1].line} in {users[-1].function}" if users else ""
        )
        return f"{who} {doing}{place}"

    @property
    def _fix(self) -> str:
        if self.state == "stopped":
            return f"Let it go on: kill -CONT {self.worker or self.pid}."
        if self.state == "debugged":
            return "Let the debugger go on, or leave it."
        if self.is_mutual or self.state == "gone":
            return (
                "All ranks must take the same steps and come to each collective: look for one under "
                "`if world.is_first:`, or for ranks that leave a loop at different places."
            )
        if self.phase is not None and self.phase.name == "data":
            return (
                "Look at the line of the stack that is yours, and at the disk or network that it reads from."
            )
        return "Look at the last line of the stack that is yours."


@dataclass(frozen=True, kw_only=True)
class GoesOn:
    """The end of a stall that was reported: the rank moved, `seconds` after it had last done so."""

    rank: int
    seconds: float

    @property
    def told(self) -> list[str]:
        """One sentence."""
        return [self.sentence]

    @property
    def sentence(self) -> str:
        return f"Rank {self.rank} goes on after {self.seconds:.0f} s."


@dataclass(frozen=True, kw_only=True)
class _Sight:
    """What was seen of a rank at one look."""

    rank: int
    pid: int | None
    phase: Phase | None
    state: State
    since_s: float
    seen_s: float

    @property
    def seconds(self) -> float:
        return self.seen_s - self.since_s

    @property
    def is_absent(self) -> bool:
        return self.state in _ABSENT

    @property
    def waits(self) -> bool:
        return self.state not in (*_ABSENT, *_HELD) and self.phase is not None and self.phase.is_waiting

    def is_still_at(self, then: "_Sight") -> bool:
        return (self.pid, self.phase, self.state in _ABSENT) == (then.pid, then.phase, then.state in _ABSENT)


class _Case:
    """A stall under inquiry: the rank is asked for its stack and, where it waits for data, its workers."""

    def __init__(
        self, folder: Path, sight: _Sight, waiting: tuple[int, ...], is_mutual: bool, now: float
    ) -> None:
        self.sight = sight
        self.is_told = False
        self._path = rank_folder(folder, sight.rank) / "stack.txt"
        self._waiting = waiting
        self._is_mutual = is_mutual
        self._workers: list[int] = []
        if sight.pid is not None and sight.phase is not None and sight.phase.name == "data":
            self._workers = forks_of(sight.pid)[:_MOST_WORKERS]
        self._stacks: dict[int, list[Frame]] = {}
        # one after the other, because they write to one file; who is stopped cannot answer
        self._to_ask = [
            pid
            for pid in (sight.pid, *self._workers)
            if pid is not None and state_of(pid) not in (*_HELD, *_ABSENT)
        ]
        self._question: Question | None = None
        self._until = now

    def inquire(self, sight: _Sight, now: float) -> Stall | None:
        """The stall, once all have answered or had time to."""
        if self._question is not None:
            frames = self._question.answer(is_late=now >= self._until)
            if frames is None:
                return None
            self._stacks[self._question.pid] = frames
            self._question = None
        if self._to_ask:
            self._question, self._until = Question(self._to_ask.pop(0), self._path), now + _ANSWER_S
            return None
        worker = self._culprit_among_workers()
        pid = worker or sight.pid
        return Stall(
            rank=sight.rank,
            phase=sight.phase,
            seconds=sight.seconds,
            state=state_of(pid) if worker else sight.state,
            pid=sight.pid,
            waiting=self._waiting,
            is_mutual=self._is_mutual,
            worker=worker,
            stack=tuple(self._stacks.get(pid, ()) if pid else ()),
        )

    def _culprit_among_workers(self) -> int | None:
        """The worker that is held, or is in the user's code; the others only wait to be given work."""
        if self.sight.state in _HELD:
            return None
        held = [pid for pid in self._workers if state_of(pid) in _HELD]
        own = [pid for pid in self._workers if _is_in_data_set(self._stacks.get(pid, []))]
        return next(iter(held + own), None)


class Stalls:
    """Looks for stalls among the ranks of the run in `folder`, and tells each once."""

    def __init__(self, folder: Path, *, after_s: float = AFTER_S) -> None:
        self._folder = folder
        self._after_s = after_s
        self._every_s = min(0.5, after_s / 5)
        self._began = math.nan
        self._next = 0.0
        self._last: dict[int, _Sight] = {}
        self._cases: dict[int, _Case] = {}
        self._patience: dict[tuple[object, ...], float] = {}

    def look(self, now: float, ranks: Iterable[int]) -> list[Stall | GoesOn]:
        """What is new at `now`, on the clock of `time.monotonic`; to be called every now and then."""
        if math.isnan(self._began):
            self._began = now
        if now < self._next:
            return []
        self._next = now + self._every_s
        self._last = {rank: self._see(rank, now) for rank in ranks}
        return self._endings() + self._news(now)

    def _see(self, rank: int, now: float) -> _Sight:
        told = phase.read(rank_folder(self._folder, rank) / "phase")
        before = self._last.get(rank)
        if told is None and before is not None:
            told = before.phase  # as it was when last seen: its process may have ended
        if told is not None and (state := state_of(told.pid)) != "gone":
            return _Sight(rank=rank, pid=told.pid, phase=told, state=state, since_s=told.began_s, seen_s=now)
        is_gone = told is not None or self._is_done(rank)
        state = "gone" if is_gone else "not begun"
        since_s = self._began if before is None else now
        if before is not None and before.state == state:
            since_s = before.since_s
        pid = told.pid if told is not None else None
        return _Sight(rank=rank, pid=pid, phase=told, state=state, since_s=since_s, seen_s=now)

    def _endings(self) -> list[Stall | GoesOn]:
        endings: list[Stall | GoesOn] = []
        for rank, case in list(self._cases.items()):
            now = self._last.get(rank)
            if now is not None and now.is_still_at(case.sight):
                continue
            del self._cases[rank]
            then = case.sight
            is_same = now is not None and (now.pid == then.pid or then.pid is None)
            if case.is_told and is_same and now is not None and now.phase is not None and not now.is_absent:
                seconds = now.phase.began_s - then.since_s
                endings.append(GoesOn(rank=rank, seconds=seconds))
                if then.phase is not None and then.state not in _HELD:
                    # what takes long each time, as a save to a slow disk, is told when it takes far longer
                    self._patience[_kind_of(then)] = 2 * seconds
        return endings

    def _news(self, now: float) -> list[Stall | GoesOn]:
        culprits, is_mutual = self._judge()
        for sight in culprits:
            if sight.rank not in self._cases:
                others = tuple(s.rank for s in self._last.values() if s.waits and s.rank != sight.rank)
                self._cases[sight.rank] = _Case(self._folder, sight, others, is_mutual, now)
        news: list[Stall | GoesOn] = []
        for rank, case in self._cases.items():
            if not case.is_told and (stall := case.inquire(self._last[rank], now)) is not None:
                case.is_told = True
                news.append(stall)
        return news

    def _judge(self) -> tuple[list[_Sight], bool]:
        """Who makes others wait; and whether these are all, and wait for each other."""
        present = [sight for sight in self._last.values() if not sight.is_absent]
        waiting = [sight for sight in present if sight.waits and sight.seconds > self._after_s]
        if len(waiting) < len(present):
            return [s for s in present if not s.waits and self._is_culprit(s, bool(waiting))], False
        absent = [s for s in self._last.values() if s.is_absent and self._is_missed(s)] if waiting else []
        is_mutual = not absent and all(s.seconds > self._patience_with(s) for s in waiting)
        return absent or (waiting if is_mutual else []), is_mutual

    def _is_culprit(self, sight: _Sight, is_waited_for: bool) -> bool:
        assert sight.phase is not None
        if sight.state in _HELD:
            return sight.seconds > self._after_s
        if is_waited_for:
            return sight.seconds > self._patience_with(sight)
        # "other" is the user's own time, before, between and after the steps
        return sight.phase.name != "other" and sight.seconds > _ALONE * self._after_s

    def _patience_with(self, sight: _Sight) -> float:
        return max(self._after_s, self._patience.get(_kind_of(sight), 0.0))

    def _is_missed(self, sight: _Sight) -> bool:
        # of one that failed the agent knows, and ends the others
        return sight.seconds > self._after_s and (sight.state == "not begun" or self._is_done(sight.rank))

    def _is_done(self, rank: int) -> bool:
        return (rank_folder(self._folder, rank) / "done").exists()


def state_of(pid: int | None) -> State:
    """What the system says of a process; one that only waits to be reaped is gone."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "gone"
    return "gone" if letter in "ZX" else _STATES.get(letter, "sleeping")


def _kind_of(sight: _Sight) -> tuple[object, ...]:
    assert sight.phase is not None
    return sight.rank, sight.phase.name, sight.phase.detail


def _is_in_data_set(stack: list[Frame]) -> bool:
    """Whether a worker is at work below its loop, not waiting there for the next request."""
    functions = [frame.function for frame in stack]
    return "fetch" in functions


def _others(count: int) -> str:
    return "1 other waits" if count == 1 else f"{count} others wait"
