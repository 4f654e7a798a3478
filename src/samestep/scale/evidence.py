"""Evidence: what rules about lost speed look at, and the words that they tell numbers with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from samestep.findings import Finding
from samestep.scale.cells import CellResult, Gap, Part, Result
from samestep.scale.estimates import Estimates
from samestep.scale.looks import Look
from samestep.scale.runs import Facts, Finished
from samestep.scale.variants import Cell, Comparison, Role, Variant

MATTERS = 0.10
"""Part of a step's time from which on something is told: less is not worth a change to a program."""
DOMINATES = 0.30
"""The same of an epoch's time, of what is not training."""


@dataclass(frozen=True, kw_only=True)
class Costly:
    """A bar that matters: not noise, and `share` of the measured time."""

    gap: Gap
    part: Part
    share: float


@dataclass(kw_only=True)
class Evidence:
    """A result without its findings, and the runs that it was made of."""

    result: Result
    comparisons: Sequence[Comparison]
    estimates: Estimates
    has_norms: bool = False
    looks: Mapping[int, Look] = field(default_factory=dict)
    """By number of ranks."""

    def costly(self, name: str) -> list[Costly]:
        """The bars of that name that matter, the costliest first."""
        found = []
        for gap in self.result.gaps:
            part = gap.part(name)
            if part is not None and not part.is_noise and part.seconds >= MATTERS * gap.measured_s:
                found.append(Costly(gap=gap, part=part, share=part.seconds / gap.measured_s))
        return sorted(found, key=lambda each: -each.share)

    def dominating(
        self, seconds: Callable[[CellResult], float | None]
    ) -> tuple[float, float, CellResult] | None:
        """Where that part of an epoch is largest, if it is large: its share, its seconds, the cell."""
        found = [
            (spent_s / cell.epoch_s, spent_s, cell)
            for cell, _ in self.measured()
            if (spent_s := seconds(cell)) and cell.epoch_s and spent_s >= DOMINATES * cell.epoch_s
        ]
        return max(found, key=lambda each: each[0], default=None)

    def variant(self, cell: Cell, role: Role) -> Variant | None:
        """What was run for a cell in a role."""
        for comparison in self.comparisons:
            if comparison.cell == cell:
                return comparison.roles(has_norms=self.has_norms).get(role)
        return None

    def reference(self, cell: Cell) -> CellResult | None:
        """What the cell of one GPU measured that another is told against."""
        found = (each.reference for each in self.comparisons if each.cell == cell)
        return next((self.result.cell(reference) for reference in found), None)

    def run(self, cell: Cell, role: Role = "full") -> Finished | None:
        """The last run of a cell in a role that has times."""
        variant = self.variant(cell, role)
        measured = [] if variant is None else self.estimates.measured(variant)
        return measured[-1] if measured else None

    def facts(self, cell: Cell, role: Role = "full") -> Facts | None:
        run = self.run(cell, role)
        return None if run is None else run.facts

    def num_cores(self, cell: Cell) -> int | None:
        run = self.run(cell)
        return None if run is None or run.host is None else run.host.num_cores

    def measured(self) -> Iterator[tuple[CellResult, Facts]]:
        """The cells that have times, refused ones too, with their facts."""
        for cell in self.result.cells:
            facts = self.facts(cell.cell)
            if facts is not None:
                yield cell, facts


Rule = Callable[[Evidence], Iterator[Finding]]


def others(found: Sequence[Costly]) -> list[dict[str, float]]:
    """The bars as evidence: cell, seconds and share of each."""
    return [
        {
            "gpus": each.gap.gpus,
            "batch_size": each.gap.batch_size,
            "seconds": each.part.seconds,
            "share": each.share,
        }
        for each in found
    ]


def told_s(seconds: float) -> str:
    """A time with three digits; more if it has more before the point."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        # 999.5 ms are 1 s in three digits
        if abs(seconds) >= 0.9995 * size:
            told = seconds / size
            return f"{told:{'.3g' if abs(told) < 999.5 else ',.0f'}} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def told_bytes(count: float) -> str:
    """A size in the unit that leaves few digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def on_gpus(cell: Cell) -> str:
    """How a sentence begins that speaks of a cell: "On 4 GPUs at batch 32,"."""
    return f"On {cell.gpus} GPU{'s' * (cell.gpus != 1)} at batch {cell.batch_size},"


def cost_of(costly: Costly) -> str:
    """What a bar costs, in words."""
    return f"{told_s(costly.part.seconds)} of a step of {told_s(costly.gap.measured_s)} ({costly.share:.0%})"
