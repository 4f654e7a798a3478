"""Advised: what `samestep advise` answered, from DIR/advice.json. Knows the file and judges nothing."""

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from samestep.advise.advice import FILE, VERSION
from samestep.advise.context import cells_digest
from samestep.report.written import FindingRow, Written, read_written


class _Finite(Written):
    model_config = ConfigDict(allow_inf_nan=False)


class OtherRow(_Finite):
    """The same GPUs with a batch that grows with them, or with one that stays."""

    batch_size: float | None
    result_s: float
    examples_factor: float
    examples_factor_low: float | None = None
    examples_factor_high: float | None = None
    is_examples_factor_known: bool = False
    is_range: bool = False


class OfferRow(_Finite):
    """What a number of GPUs would give; fields as `samestep.advise.offers.Offer` has them."""

    gpus: int = Field(ge=1)
    kind: Literal["measured", "projected"]
    batch_size: float | None
    """None where nobody said it."""
    step_s: float = Field(gt=0)
    low_s: float = Field(gt=0)
    high_s: float = Field(gt=0)
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    wait_s: float
    wait_high_s: float
    start_s: float
    train_s: float
    train_low_s: float
    train_high_s: float
    result_s: float
    result_high_s: float
    gpu_hours: float
    gpu_hours_low: float
    gpu_hours_high: float
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    is_pareto: bool = False
    is_range: bool = False
    grows_batch: OtherRow | None = None
    same_batch: OtherRow | None = None


class WhatIfRow(_Finite):
    """A change and what it would bring, in words."""

    name: str
    message: str


class SimulatedRow(_Finite):
    """A number of GPUs on machines that were not measured, at best and at worst."""

    gpus: int = Field(ge=1)
    nodes: int = Field(ge=1)
    low_s: float = Field(gt=0)
    high_s: float = Field(gt=0)
    speedup: float
    speedup_low: float
    train_s: float
    train_high_s: float
    parts: dict[str, float]
    """Of the step at best, by name."""


class ClusterRow(_Finite):
    """The machines of `--cluster`, and what was simulated on them."""

    name: str
    sources: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    rows: tuple[SimulatedRow, ...]


class Advised(_Finite):
    """What advice.json says."""

    recommended_gpus: int
    reason: str
    batch: Literal["same", "grows"]
    rows: tuple[OfferRow, ...] = Field(min_length=1)
    what_ifs: tuple[WhatIfRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    remarks: tuple[str, ...] = ()
    cluster: ClusterRow | None = None
    cells_digest: str | None = None
    is_step_known: bool = True
    is_batch_known: bool = True
    is_old: bool = False
    """Whether its cells were measured again since."""


def read_advised(folder: Path) -> Advised | None:
    """The advice in `folder`; None where there is none."""
    advised = read_written(
        folder / FILE,
        Advised,
        version=VERSION,
        noun="advice",
        again="ask for it again with `samestep advise`",
    )
    if advised is None:
        return None
    is_old = advised.cells_digest not in (None, cells_digest(folder))
    return advised.model_copy(update={"is_old": is_old})
