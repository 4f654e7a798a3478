"""Whether ranks keep in step and their losses stay numbers: how far each has come, and on what it trains.

Ranks that exchange gradients cannot be more than a step apart for long. Where each rank is now comes from
`samestep.phase`; how far it had come at its last look, and that it has ended, from its rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from samestep.findings import Finding
from samestep.observed import End, Loss, Row, Step
from samestep.phase import Phase
from samestep.verify.online_words import ranks_text

STAND_S = 300.0
WAIT_S = 10.0
"""How long a rank may be in a step that another, which has ended, will never take."""
_IN_STEP = ("backward", "exchange", "update")
_FIX = (
    "All ranks must take the same number of steps: look for loaders of different lengths, and for steps that "
    "only some ranks take or leave out."
)


@dataclass(frozen=True)
class _Place:
    step: int
    is_in_step: bool
    moved_s: float

    def __str__(self) -> str:
        return f"{'in' if self.is_in_step else 'before'} the backward pass of step {self.step}"


class PaceWatch:
    """Judges the distance between ranks; `far` steps are too many, and `stand_s` seconds too long."""

    def __init__(self, world_size: int, *, far: int, stand_s: float = STAND_S) -> None:
        self._world_size = world_size
        self._far = far
        self._stand_s = stand_s
        self._steps: dict[int, int] = {}
        self._finite_at: dict[int, int] = {}
        self._ends: dict[int, End] = {}
        self._is_apart_since: float | None = None
        self._is_told = False
        self._is_loss_told = False

    def take(self, rank: int, row: Row) -> list[Finding]:
        """What a row of a rank shows."""
        if isinstance(row, Step):
            self._steps[rank] = row.step
        elif isinstance(row, Loss):
            return self._loss(rank, row)
        elif isinstance(row, End):
            self._ends[rank] = row
            return self._end()
        return []

    def stand(self, phases: Mapping[int, Phase], now: float) -> list[Finding]:
        """What the places of the ranks show at this time, on the clock of `time.monotonic`."""
        if self._is_told or self._world_size == 1:
            return []
        running = {rank: phase for rank, phase in phases.items() if rank not in self._ends}
        return self._too_far(running, now) or self._left_alone(running, now) or self._stands(running, now)

    def _loss(self, rank: int, row: Loss) -> list[Finding]:
        if row.value is None or math.isfinite(row.value):
            self._finite_at[rank] = row.step
            return []
        if self._is_loss_told:
            return []
        self._is_loss_told = True
        before = self._finite_at.get(rank)
        since = (
            "it was the first that was looked at" if before is None else f"that of step {before} was finite"
        )
        return [
            Finding(
                cause="loss-not-finite",
                message=f"The loss of step {row.step} is {row.value} on rank {rank}; {since}.",
                evidence={
                    "rank": rank,
                    "step": row.step,
                    "value": str(row.value),
                    "finite_until_step": before,
                },
                fix="Look at the examples of that step; lower the learning rate, or clip gradients.",
            )
        ]

    def _end(self) -> list[Finding]:
        """Once all ranks have ended well: whether they took equally many steps."""
        counts = {rank: end.num_steps for rank, end in sorted(self._ends.items())}
        is_well = all(end.status == "finished" for end in self._ends.values())
        if len(counts) < self._world_size or not is_well or len(set(counts.values())) == 1 or self._is_told:
            return []
        self._is_told = True
        told = ", ".join(f"rank {rank} {count}" for rank, count in list(counts.items())[:16])
        return [
            Finding(
                cause="ranks-out-of-step",
                message=f"The ranks did not take the same number of steps: {told}.",
                evidence={"steps": list(counts.values())},
                fix=_FIX,
            )
        ]

    def _too_far(self, running: Mapping[int, Phase], now: float) -> list[Finding]:
        steps = {**self._steps, **{rank: end.num_steps for rank, end in self._ends.items()}}
        for rank, phase in running.items():
            steps[rank] = max(steps.get(rank, 0), (phase.step or 1) - 1)
        if len(steps) < self._world_size or max(steps.values()) - min(steps.values()) < self._far:
            self._is_apart_since = None
            return []
        if self._is_apart_since is None:
            self._is_apart_since = now
            return []
        last, first = min(steps, key=lambda r: (steps[r], r)), max(steps, key=lambda r: (steps[r], -r))
        gone = " and has ended" if last in self._ends else ""
        return self._tell(
            f"Rank {last} has taken {steps[last]} steps{gone}, while rank {first} has taken {steps[first]}: "
            "they do not wait for each other.",
            {"rank": last, "step": steps[last], "ahead": first, "ahead_step": steps[first]},
        )

    def _left_alone(self, running: Mapping[int, Phase], now: float) -> list[Finding]:
        ended = {rank: end.num_steps for rank, end in self._ends.items() if end.status == "finished"}
        for rank, phase in sorted(running.items()):
            place = _place(phase)
            behind = [other for other, count in ended.items() if place.is_in_step and count < place.step]
            if behind and now - place.moved_s >= WAIT_S:
                return self._tell(
                    f"Rank {rank} has been in step {place.step} for {now - place.moved_s:.0f} s, which "
                    f"{ranks_text(behind)} will not take: ended after {ended[behind[0]]} steps.",
                    {"rank": rank, "step": place.step, "ended": behind, "ended_step": ended[behind[0]]},
                )
        return []

    def _stands(self, running: Mapping[int, Phase], now: float) -> list[Finding]:
        places = {rank: _place(phase) for rank, phase in running.items()}
        if len(places) < self._world_size:
            return []
        still_s = now - max(place.moved_s for place in places.values())
        if still_s < self._stand_s or len({(place.step, place.is_in_step) for place in places.values()}) == 1:
            return []
        last = min(places, key=lambda r: (places[r].step, places[r].is_in_step, r))
        far = places[last].step, places[last].is_in_step
        others = [r for r, place in sorted(places.items()) if (place.step, place.is_in_step) > far]
        return self._tell(
            f"Nothing has moved for {still_s:.0f} s: rank {last} is {places[last]}, {ranks_text(others)} "
            f"{places[others[0]]}.",
            {"rank": last, "step": places[last].step, "ahead": others, "seconds": round(still_s)},
        )

    def _tell(self, message: str, evidence: dict[str, object]) -> list[Finding]:
        self._is_told = True
        return [Finding(cause="ranks-out-of-step", message=message, evidence=evidence, fix=_FIX)]


def _place(phase: Phase) -> _Place:
    return _Place(step=phase.step or 0, is_in_step=phase.name in _IN_STEP, moved_s=phase.began_s)
