"""Offers: what a number of GPUs would give for a run: when the result is there, and what it costs.

Arithmetic only. Steps are from a projection, the run's length and the queue from the user, start-up from what
was measured. Every time has what is expected and what it is at most nine times out of ten; the latter is the
sum of its parts at their 90 %, so it can be added up by hand and is rather too long than too short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samestep.advise.rows import Kind, ProjectedRow, Row
from samestep.advise.waits import Wait, Waits


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """What a run takes beside its steps, by number of GPUs as it was measured.

    Other numbers have those of the next smaller one, else of the smallest: neither shrinks with GPUs.
    """

    start_s: Mapping[int, float]
    """From the start of processes until steps are as quick as they get."""
    epoch_s: Mapping[int, float]
    """Evaluation and checkpoints of an epoch."""

    def start_at(self, gpus: int) -> float:
        return _nearest(self.start_s, gpus)

    def epoch_at(self, gpus: int) -> float:
        return _nearest(self.epoch_s, gpus)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The length of a run: examples that its steps take, and epochs, after which it evaluates and saves."""

    num_examples: float
    num_epochs: float = 0.0
    name: str = ""
    """What it is, where nobody said how long it is to be; plural, or one of something."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a number of GPUs would give."""

    gpus: int
    nodes: int
    kind: Kind
    batch_size: float
    step_s: float
    low_s: float
    high_s: float
    speedup: float
    """Of examples a second, over the fewest GPUs that are known, times their number if that is not 1."""
    speedup_low: float
    speedup_high: float
    examples_factor: float
    """How many times the examples of the run it needs, because of its batch."""
    turns: float
    """Of a step; gradients are exchanged in the last one."""
    num_steps: float
    beside_s: float
    """Evaluation and checkpoints of the whole run."""
    wait: Wait
    start_s: float
    train_s: float
    """Steps, and what is beside them."""
    train_low_s: float
    train_high_s: float
    is_range: bool = False
    """Whether what was measured tells too little to ask for it; `because` says why."""
    because: str = ""
    with_cores_s: float | None = None
    """Its step if the host had cores enough; None if it has, or if nobody knows."""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """By name, what a projected step takes longer than its share of one GPU's."""

    @property
    def efficiency(self) -> float:
        return self.speedup / self.gpus

    @property
    def efficiency_low(self) -> float:
        return self.speedup_low / self.gpus

    @property
    def efficiency_high(self) -> float:
        return self.speedup_high / self.gpus

    @property
    def result_s(self) -> float:
        """Until the result is there, as expected."""
        return self.wait.expected_s + self.start_s + self.train_s

    @property
    def result_high_s(self) -> float:
        return self.wait.high_s + self.start_s + self.train_high_s

    @property
    def gpu_hours(self) -> float:
        """Of all GPUs together, while the job has them."""
        return self.gpus * (self.start_s + self.train_s) / 3600

    @property
    def gpu_hours_low(self) -> float:
        return self.gpus * (self.start_s + self.train_low_s) / 3600

    @property
    def gpu_hours_high(self) -> float:
        return self.gpus * (self.start_s + self.train_high_s) / 3600

    def to_json(self, gpu_hour: float | None) -> dict[str, Any]:
        """As a row of the table; `gpu_hour` is what one costs, if that is known."""
        hours = (self.gpu_hours, self.gpu_hours_low, self.gpu_hours_high)
        cost, cost_low, cost_high = (None if gpu_hour is None else each * gpu_hour for each in hours)
        return {name: getattr(self, name) for name in _TOLD} | {
            "wait_s": self.wait.expected_s,
            "wait_high_s": self.wait.high_s,
            "cost": cost,
            "cost_low": cost_low,
            "cost_high": cost_high,
        }


_TOLD = (
    "gpus", "nodes", "kind", "is_range", "because", "batch_size", "examples_factor",
    "step_s", "low_s", "high_s", "speedup", "speedup_low", "speedup_high",
    "efficiency", "efficiency_low", "efficiency_high",
    "start_s", "train_s", "train_low_s", "train_high_s", "result_s", "result_high_s",
    "gpu_hours", "gpu_hours_low", "gpu_hours_high",
)  # fmt: skip
"""What machines are told of an offer under its own name."""


def offers_of(
    rows: Sequence[Row],
    run: Run,
    *,
    waits: Waits,
    overheads: Overheads,
    examples_factors: Mapping[int, float] | None = None,
) -> list[Offer]:
    """One offer for each row, in order of GPUs; `examples_factors` are 1 where they are not given."""
    ordered = sorted(rows, key=lambda row: row.gpus)
    if not ordered:
        return []
    first = ordered[0]
    found = []
    for row in ordered:
        batch_size = row.gpus * row.batch_per_gpu
        factor = (examples_factors or {}).get(row.gpus, 1.0)
        num_steps = run.num_examples * factor / batch_size
        beside_s = run.num_epochs * factor * overheads.epoch_at(row.gpus)
        # of the first row's GPUs, each counts as one
        speedup, speedup_low, speedup_high = (first.gpus * each for each in row.speedup_over(first))
        projected = row if isinstance(row, ProjectedRow) else None
        found.append(
            Offer(
                gpus=row.gpus,
                nodes=row.nodes,
                kind=row.kind,
                batch_size=batch_size,
                step_s=row.step_s,
                low_s=row.low_s,
                high_s=row.high_s,
                speedup=speedup,
                speedup_low=speedup_low,
                speedup_high=speedup_high,
                examples_factor=factor,
                turns=row.turns,
                num_steps=num_steps,
                beside_s=beside_s,
                wait=waits.at(row.gpus),
                start_s=overheads.start_at(row.gpus),
                train_s=num_steps * row.step_s + beside_s,
                train_low_s=num_steps * row.low_s + beside_s,
                train_high_s=num_steps * row.high_s + beside_s,
                is_range=projected is not None and projected.is_range,
                because="" if projected is None else projected.because,
                with_cores_s=None if projected is None else projected.with_cores_s,
                parts_s={} if projected is None else projected.parts_s,
            )
        )
    return found


def pareto(offers: Sequence[Offer]) -> list[Offer]:
    """Those that no other beats in both time and GPU-hours; the quickest first."""
    front: list[Offer] = []
    for offer in sorted(offers, key=lambda each: (each.result_s, each.gpu_hours, each.gpus)):
        if not front or offer.gpu_hours < front[-1].gpu_hours:
            front.append(offer)
    return front


def _nearest(known: Mapping[int, float], gpus: int) -> float:
    if not known:
        return 0.0
    below = [world for world in known if world <= gpus]
    return known[max(below) if below else min(known)]
