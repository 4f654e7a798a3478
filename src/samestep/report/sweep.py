"""Sweep: what a sweep answered, from scale.json, or from the runs of one that was killed before it could.

Knows what is written there; how fast anything is was decided before.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from samestep.report.unfinished import judged_again
from samestep.report.written import FindingRow, Written, read_written
from samestep.scale.cells import VERSION

Loss = Annotated[float, Field(allow_inf_nan=True)]


class _Finite(Written):
    """Numbers that can be drawn; there is None for those that are not known."""

    model_config = ConfigDict(allow_inf_nan=False)


class CellRow(_Finite):
    """A number of GPUs and a global batch; of `samestep.scale.cells.CellResult`, what is shown."""

    gpus: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    batch_per_gpu: float
    status: str
    ideal_speedup: float
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    examples_per_s: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    efficiency: float | None = None
    epoch_s: float | None = None
    cpu_utilisation: float | None = None
    gpu_utilisation: float | None = None
    energy_j: float | None = None
    """Of a step, over all ranks."""
    memory_bytes: float | None = None
    reason: str = ""
    marks: tuple[str, ...] = ()


class PartRow(_Finite):
    """A bar of a gap."""

    name: str
    seconds: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        return self.low <= 0.0 <= self.high


class BarsRow(_Finite):
    """From ideal to measured time, in parts that add up to the difference."""

    ideal_s: float
    measured_s: float
    parts: tuple[PartRow, ...] = ()


class GapRow(BarsRow):
    """The bars of a step, and those of an epoch where they are known."""

    gpus: int
    batch_size: int
    epoch: BarsRow | None = None


class MarkRow(Written):
    """What makes a cell's comparison worth less; nothing at all if it is a refusal."""

    mark: str
    reason: str = ""
    gpus: int | None = None
    batch_size: int | None = None
    is_refusal: bool = False


class CurveRow(_Finite):
    """Points (step, examples, seconds, loss) of a cell; the loss is None where it is not finite."""

    gpus: int
    batch_size: int
    points: tuple[tuple[float, float | None, float | None, Loss | None], ...] = ()


class NoiseRow(Written):
    """The gradient noise scale, in examples."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    num_steps: int | None = None
    from_gpus: int | None = None
    reason: str | None = None
    """Why there is no value."""


class Sweep(_Finite):
    """What scale.json says; `command` is the words that `samestep` was called with, if they are known."""

    cells: tuple[CellRow, ...]
    gaps: tuple[GapRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    fairness: tuple[MarkRow, ...] = ()
    remarks: tuple[str, ...] = ()
    environment: dict[str, Any] = Field(default_factory=dict)
    rounds: int = 0
    precision: float | None = None
    is_weak: bool = False
    command: tuple[str, ...] = ()
    outlook: str | None = None
    stopped_because: str | None = None
    threads_per_rank: int | None = None
    curves: tuple[CurveRow, ...] = ()
    noise_scale: NoiseRow | None = None

    @property
    def worlds(self) -> list[int]:
        """Numbers of GPUs, in order."""
        return sorted({cell.gpus for cell in self.cells})

    def family(self, cell: CellRow | GapRow | CurveRow) -> float:
        """What cells that are compared with one another have in common: the batch, or that of each GPU."""
        return cell.batch_size / cell.gpus if self.is_weak else cell.batch_size

    def families(self) -> list[list[CellRow]]:
        """Cells that are compared with one another, in order of their batch and of GPUs."""
        found: dict[float, list[CellRow]] = {}
        for cell in sorted(self.cells, key=lambda cell: (self.family(cell), cell.gpus)):
            found.setdefault(self.family(cell), []).append(cell)
        return list(found.values())


def read_sweep(folder: Path) -> Sweep | None:
    """The sweep in `folder`; None where there is none, or none of its runs is over."""
    written = read_written(
        folder / "scale.json", Sweep, version=VERSION, noun="a sweep", again="measure the program again"
    )
    if written is not None:
        return written
    answer = judged_again(folder)
    return None if answer is None else Sweep.model_validate(answer)
