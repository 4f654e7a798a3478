"""Rows: what is said of each number of GPUs. What was measured and what is projected are different types."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

Kind = Literal["measured", "projected"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A number of GPUs; None is not known. `low_s` ≤ `step_s` ≤ `high_s`.

    Speedup is that of examples per second over one GPU that was measured.
    """

    kind: ClassVar[Kind]

    gpus: int
    nodes: int
    batch_per_gpu: float
    """1 where nobody said it."""
    step_s: float
    low_s: float
    high_s: float
    turns: float = 1.0
    """A GPU works on its examples in so many pieces, one after the other."""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    is_batch_known: bool = True
    is_in_seconds: bool = True
    """Not where only examples a second are known and no batch: then a step is one example on each GPU."""

    @property
    def efficiency(self) -> float | None:
        return None if self.speedup is None else self.speedup / self.gpus

    @property
    def examples_per_s(self) -> float:
        return self.gpus * self.batch_per_gpu / self.step_s

    def speedup_over(self, one: "Row") -> tuple[float, float, float]:
        """Of examples a second, with its interval: no surer than what it is over; over itself exactly 1."""
        speedup = self.examples_per_s / one.examples_per_s
        if self is one:
            return speedup, speedup, speedup
        below = math.hypot(math.log(self.high_s / self.step_s), math.log(one.step_s / one.low_s))
        above = math.hypot(math.log(self.step_s / self.low_s), math.log(one.high_s / one.step_s))
        return speedup, speedup * math.exp(-below), speedup * math.exp(above)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind} | asdict(self) | {"efficiency": self.efficiency}


@dataclass(frozen=True, kw_only=True)
class MeasuredRow(Row):
    """A cell as it was measured; the interval is the cell's own (95 %), or nothing but its time."""

    kind: ClassVar[Kind] = "measured"

    speedup_around: tuple[float, float] | None = None
    """The interval of the speedup over one GPU, as parts of it, where both were measured by turns."""

    def speedup_over(self, one: Row) -> tuple[float, float, float]:
        if self.speedup_around is None or self is one or one.gpus > 1:
            return super().speedup_over(one)
        speedup, (low, high) = self.examples_per_s / one.examples_per_s, self.speedup_around
        return speedup, speedup * min(low, 1.0), speedup * max(high, 1.0)


@dataclass(frozen=True, kw_only=True)
class ProjectedRow(Row):
    """A number of GPUs that was not measured.

    Of a row `is_range`, only the interval is an answer: what was measured tells too little about it, and
    `because` says why.
    """

    kind: ClassVar[Kind] = "projected"

    level: float
    """How often the interval holds the truth."""
    is_range: bool = False
    because: str = ""
    is_in_vain: bool = False
    """Whether it is a range because more GPUs gained nothing where they were measured."""
    with_cores_s: float | None = None
    """The step if the host had cores enough; None if it has, or if nobody knows."""
    parts_s: dict[str, float] = field(default_factory=dict)
    """By name, what the step is projected to take longer than the same share of one GPU's step."""
