"""Cells: the result of a sweep, and how it is written as JSON. Knows no files and judges nothing.

Everything here was measured. What cannot be told is None, and `marks` or `reason` say why.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from samestep.findings import Finding
from samestep.scale.variants import Cell

Status = Literal["measured", "refused", "failed", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that makes a cell's comparison worth less; nothing at all if it is a refusal."""

    mark: str
    """A slug."""
    reason: str
    gpus: int
    batch_size: int
    is_refusal: bool = False


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What one cell measured: medians over rounds, with intervals of 95 %.

    Speedup is that of examples per second over one GPU: of the same batch it is T(1) / T(N). A cell that is
    refused has times of its own and no speedup.
    """

    gpus: int
    batch_size: int
    batch_per_gpu: float
    ideal_speedup: float
    status: Status
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    examples_per_s: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    efficiency: float | None = None
    epoch_s: float | None = None
    """Steps of one pass over the data, with evaluation and checkpoints as often as they were seen."""
    steps_per_epoch: int | None = None
    evaluation_s: float | None = None
    """Of an epoch; so are checkpoints."""
    checkpoint_s: float | None = None
    cpu_utilisation: float | None = None
    """Of all cores of the host, by the ranks' own processes."""
    memory_bytes: int | None = None
    num_rounds: int = 0
    reason: str = ""
    """Why there are no times."""
    marks: tuple[str, ...] = ()

    @property
    def cell(self) -> Cell:
        return Cell(gpus=self.gpus, batch_size=self.batch_size)

    @property
    def relative_half_width(self) -> float | None:
        """Half of the interval of a step's time, as a part of it."""
        if not self.step_s or self.step_low_s is None or self.step_high_s is None:
            return None
        return (self.step_high_s - self.step_low_s) / 2 / self.step_s


@dataclass(frozen=True, kw_only=True)
class Part:
    """A bar of a gap; it is noise if its interval has 0 in it."""

    name: str
    seconds: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        return self.low <= 0.0 <= self.high


@dataclass(frozen=True, kw_only=True)
class Gap:
    """From ideal to measured time of a step; the parts add up to the difference exactly."""

    gpus: int
    batch_size: int
    ideal_s: float
    measured_s: float
    parts: tuple[Part, ...]

    @property
    def cell(self) -> Cell:
        return Cell(gpus=self.gpus, batch_size=self.batch_size)

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["parts"] = [dataclasses.asdict(part) | {"is_noise": part.is_noise} for part in self.parts]
        return values


@dataclass(kw_only=True)
class Result:
    """The result of a sweep."""

    cells: list[CellResult]
    gaps: list[Gap]
    findings: list[Finding] = field(default_factory=list)
    fairness: list[Mark] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)
    num_rounds: int = 0
    precision: float = 0.03
    """Half of an interval, as a part of its value, that is narrow enough."""
    is_weak: bool = False

    def cell(self, cell: Cell) -> CellResult | None:
        return next((found for found in self.cells if found.cell == cell), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "cells": [dataclasses.asdict(cell) | {"marks": list(cell.marks)} for cell in self.cells],
            "gaps": [gap.to_json() for gap in self.gaps],
            "findings": [finding.to_json() for finding in self.findings],
            "fairness": [dataclasses.asdict(mark) for mark in self.fairness],
            "environment": dict(self.environment),
            "rounds": self.num_rounds,
            "precision": self.precision,
            "is_weak": self.is_weak,
        }
