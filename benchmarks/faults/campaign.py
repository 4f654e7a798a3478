"""The campaign: rounds of faults, each of which must end with the result of a run that had none."""

import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.faults import kinds
from benchmarks.faults.attempt import PLACES
from benchmarks.faults.kinds import Round
from samestep.record import Record

Kind = Callable[[Round], None]

ONE_OF_EACH: dict[str, Kind] = {
    "ranks": partial(kinds.kill, times=2, places=("saving", "evaluation")),
    "stopped": partial(kinds.stop, goes_on=True),
    "errors": kinds.err,
    "damage": kinds.damage,
    "clock": kinds.jump_clock,
}
"""What the short form goes through, on few ranks."""
FEW = ("1:2", "2")

_KILLS: tuple[Kind, ...] = (
    partial(kinds.kill, times=4),
    partial(kinds.kill, times=4, places=("saving", "evaluation")),
    partial(kinds.kill, times=4, places=("start-up", "saving")),
    partial(kinds.kill, times=3, victims=("rank", "member")),
    partial(kinds.kill, times=3, victims=("rank", "launcher", "host")),
)
_OTHERS: tuple[Kind, ...] = (
    partial(kinds.stop, goes_on=True),
    partial(kinds.stop, goes_on=False),
    kinds.raise_in_data,
    kinds.fill_disk,
    kinds.damage,
    kinds.jump_clock,
)


@dataclass
class Tally:
    """How often a fault struck, where, and how its rounds ended."""

    places: Counter[str] = field(default_factory=Counter)
    faults: int = 0
    rounds: int = 0
    same: int = 0
    left: int = 0


@dataclass
class Campaign:
    """Runs rounds against one reference, and counts."""

    seed: int
    folder: Path
    worlds: tuple[str, ...] = kinds.WORLDS
    say: Callable[[str], None] = lambda line: None
    tallies: dict[str, Tally] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    kills: int = 0
    reference: dict[str, Any] = field(default_factory=dict)
    """What a run without faults answers."""

    def learn(self) -> None:
        """See how a run without faults ends, on one rank."""
        reference = Round(self.folder / "reference", random.Random(self.seed)).start(gpus="1")
        assert reference.wait() == 0, reference.said
        self.reference = reference.result
        self.say(f"reference: digest {self.reference['digest'][:16]}…, {self.reference['examples']} examples")

    def round(self, name: str, kind: Kind) -> bool:
        """One run with faults; whether it ended as the reference did, and left nothing behind."""
        began = time.monotonic()
        turn = Round(self.folder / name, random.Random(f"{self.seed}/{name}"), self.worlds)
        trouble = ""
        try:
            kind(turn)
            turn.finish()
            trouble = self.differs(turn)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            traceback.print_exc(file=sys.stderr)
        finally:
            for attempt in turn.attempts:
                attempt.end()
        if turn.left:
            trouble = "; ".join(filter(None, [trouble, f"left behind: {', '.join(turn.left)}"]))
        self._count(turn, is_same=not trouble)
        faults = ", ".join(f"{fault}{f' in {place}' if place else ''}" for fault, place in turn.done)
        worlds = " → ".join(attempt.gpus for attempt in turn.attempts)
        about = f"{name} (seed {self.seed}; ranks {worlds}; {time.monotonic() - began:.0f} s)"
        self.say(f"{about}: {faults or 'no fault'}: {trouble or 'same digest, nothing left'}")
        if trouble:
            self.failures.append(f"{name}: {trouble}; its files are in {turn.out}")
        else:
            shutil.rmtree(turn.out)
        return not trouble

    def differs(self, turn: Round) -> str:
        """In what the result of a run is not that of one without faults; nothing if it is."""
        result = turn.attempts[-1].result
        for name in ("digest", "examples", "steps", "values"):
            if result[name] != self.reference[name]:
                return f"{name} is {result[name]}, without faults {self.reference[name]}"
        steps = [row["step"] for row in Record.read(turn.out).steps()]
        return "" if steps == list(range(1, result["steps"] + 1)) else f"recorded steps are {steps}"

    def _count(self, turn: Round, *, is_same: bool) -> None:
        for fault in {fault for fault, _ in turn.done}:
            tally = self.tallies.setdefault(fault, Tally())
            tally.rounds += 1
            tally.same += is_same
            tally.left += len(turn.left)
        for fault, place in turn.done:
            self.tallies[fault].faults += 1
            self.tallies[fault].places[place or ""] += 1
            self.kills += "SIGKILL" in fault

    def table(self) -> Table:
        """The tallies for people."""
        result = Table(title=f"{self.kills} kills, seed {self.seed}", title_justify="left")
        for name in ("fault", "times", *PLACES, "rounds", "same result", "left behind"):
            result.add_column(name, justify="left" if name == "fault" else "right")
        for fault, tally in sorted(self.tallies.items()):
            places = [str(tally.places[place] or "") for place in PLACES]
            counts = map(str, (tally.rounds, tally.same, tally.left))
            result.add_row(fault, str(tally.faults), *places, *counts)
        return result

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        faults = {
            fault: {**vars(tally), "places": dict(tally.places)}
            for fault, tally in sorted(self.tallies.items())
        }
        return {"seed": self.seed, "kills": self.kills, "faults": faults, "failures": self.failures}


def plan(kills: int, done: Callable[[], int]) -> Iterator[tuple[str, Kind]]:
    """The rounds of the long form: kills until there are enough, other faults among them."""
    number = 0
    while done() < kills or number < len(_KILLS) + len(_OTHERS):
        kind = _KILLS[number // 2 % len(_KILLS)] if number % 2 == 0 else _OTHERS[number // 2 % len(_OTHERS)]
        if number > 4 * len(_OTHERS) and number % 2:
            kind = _KILLS[number % len(_KILLS)]
        yield f"round-{number:03d}", kind
        number += 1


def run(*, kills: int | None, seed: int, say: Callable[[str], None]) -> Campaign:
    """The long form with so many kills at least; without a number, the short one."""
    folder = Path(tempfile.mkdtemp(prefix="samestep-faults-"))
    campaign = Campaign(seed=seed, folder=folder, worlds=FEW if kills is None else kinds.WORLDS, say=say)
    campaign.learn()
    rounds = iter(ONE_OF_EACH.items()) if kills is None else plan(kills, lambda: campaign.kills)
    for name, kind in rounds:
        campaign.round(name, kind)
    if not campaign.failures:
        shutil.rmtree(folder)
    return campaign
