"""A program that is watched all through: started on N ranks of this machine, or followed where it runs.

Whatever asks this process to stop is passed on to the ranks: a long run may want to save before it ends.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from samestep.errors import RecordError
from samestep.findings import Finding
from samestep.launch.failure import Failure
from samestep.launch.folder import prepared
from samestep.launch.job import Job
from samestep.launch.local import GRACE_S
from samestep.launch.progress import Progress
from samestep.launch.voices import Said
from samestep.launch.watched import Ended, Watched
from samestep.record import RecordWriter
from samestep.verify.online import EVERY, Online
from samestep.verify.online_pace import STAND_S

LOOK_S = 1.0
_GRACE_S: Mapping[int, float] = {**GRACE_S, signal.SIGINT: 30.0}
"""From a request to stop until ranks are killed; a second Ctrl-C does not wait."""

OnSaid = Callable[[Sequence[Said]], None]
OnFinding = Callable[[Finding], None]


@dataclass(frozen=True, kw_only=True)
class WatchedRun:
    """How a program that was watched ended, and what was found; `exit_code` is the program's own.

    `num_steps` are those that were seen, 0 if no optimizer took any.
    """

    folder: Path
    exit_code: int
    num_steps: int
    findings: tuple[Finding, ...]
    failure: Failure | None = None


class Looking:
    """Looks at a run now and then, however often it is called; what is new goes to findings.jsonl as well."""

    def __init__(self, online: Online, on_finding: OnFinding = lambda finding: None) -> None:
        self.online = online
        self._on_finding = on_finding
        self._looked_at = 0.0

    def __call__(self) -> None:
        if time.monotonic() - self._looked_at >= LOOK_S:
            self.look()

    def look(self, *, to_the_end: bool = False) -> None:
        """Look now."""
        found = self.online.look(to_the_end=to_the_end)
        self._looked_at = time.monotonic()
        if found:
            with contextlib.closing(RecordWriter(self.online.folder, 0)) as record:
                for finding in found:
                    record.finding(finding)
                    self._on_finding(finding)


def watch_program(
    script: Sequence[str],
    *,
    world_size: int,
    out: Path,
    threads: int,
    every: int = EVERY,
    stand_s: float = STAND_S,
    on_said: OnSaid = lambda said: None,
    on_finding: OnFinding = lambda finding: None,
) -> WatchedRun:
    """Run a script on `world_size` ranks of this machine until it ends, and look at it all the while."""
    watched = Watched(
        job=Job(command="script", script=tuple(script)),
        threads=threads,
        steps=None,
        stall_s=None,
        options=("--every", str(every)),
    )
    with prepared(out, resume=False) as folder, _signals() as received:
        look = Looking(Online(folder, every=every, stand_s=stand_s), on_finding)
        passing_on = _PassingOn(received)

        def tick(ranks: Sequence[Progress], said: list[Said]) -> None:
            on_said(said)
            look()
            passing_on(ranks)

        try:
            ended = watched.run(folder, world_size, on_tick=tick)
        except _TooLate:
            ended = None
        look.look(to_the_end=True)
    code = 128 + received[0][0] if ended is None else _code_of(ended)
    return WatchedRun(
        folder=folder,
        exit_code=code,
        num_steps=look.online.num_steps,
        findings=tuple(look.online.findings),
        failure=None if ended is None or received else ended.failure,
    )


def follow(folder: Path, *, every: int = EVERY, on_finding: OnFinding = lambda finding: None) -> WatchedRun:
    """Look at ranks that somebody else has started below the probe, until the last of them is gone."""
    if not any(folder.glob("ranks/*/observations*.jsonl")):
        raise RecordError(
            f"{folder} was to be followed, but no rank has written there; start the ranks with `python -m "
            f"samestep.probe {folder} --every {every} SCRIPT`, or name a script after `--`."
        )
    look = Looking(Online(folder, every=every), on_finding)
    look.look(to_the_end=True)
    while not (look.online.is_over or look.online.is_abandoned):
        time.sleep(LOOK_S)
        look.look(to_the_end=True)
    online = look.online
    return WatchedRun(folder=folder, exit_code=0, num_steps=online.num_steps, findings=tuple(online.findings))


class _TooLate(Exception):
    """Ranks that were asked to stop have not."""


class _PassingOn:
    """Hands signals that came here on to the ranks, and gives up on ranks that do not heed them."""

    def __init__(self, received: list[tuple[int, float]]) -> None:
        self._received = received
        self._told: set[tuple[int, int]] = set()

    def __call__(self, ranks: Sequence[Progress]) -> None:
        for number, _ in self._received:
            for rank in ranks:
                if rank.start is not None and rank.end is None and (rank.rank, number) not in self._told:
                    self._told.add((rank.rank, number))
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(rank.start.pid, number)
        now = time.monotonic()
        asks = [number for number, _ in self._received].count(signal.SIGINT)
        if asks > 1 or any(now - then > _GRACE_S[number] for number, then in self._received):
            raise _TooLate


@contextlib.contextmanager
def _signals() -> Iterator[list[tuple[int, float]]]:
    """Collect the signals that ask to stop, with their times; outside the main thread, none."""
    received: list[tuple[int, float]] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: FrameType | None) -> None:
        received.append((number, time.monotonic()))

    before = {number: signal.signal(number, note) for number in _GRACE_S}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _code_of(ended: Ended) -> int:
    """The exit code of the rank that failed, as a shell tells it; 0 if none did."""
    if ended.status == "finished":
        return 0
    rank = ended.failure.rank if ended.failure is not None else None
    codes = [code for each, code in ended.exit_codes.items() if code != 0 and rank in (each, None)]
    code = codes[0] if codes else 1
    return code if code > 0 else 128 - code
