"""Cells: the result of a sweep, and how it is written as JSON. Knows no files and judges nothing.

Everything here was measured. What cannot be told is None, and `marks` or `reason` say why.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from samestep import __version__
from samestep.findings import Finding
from samestep.scale.variants import Cell

VERSION = 1
"""Of what is written to scale.json."""

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
    """Of an epoch; so are checkpoints. None if no run was long enough to tell."""
    checkpoint_s: float | None = None
    start_s: float | None = None
    """From the start of the processes to their first step."""
    warm_up_s: float | None = None
    """What the first steps took longer than others, compiling included."""
    cpu_utilisation: float | None = None
    """Of all cores of the host, by the ranks' own processes."""
    gpu_utilisation: float | None = None
    energy_j: float | None = None
    """Of a step, of all GPUs together."""
    memory_bytes: int | None = None
    """Of the rank that had most."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """How many ranks were on a device of each model."""
    num_rounds: int = 0
    reason: str = ""
    """Why there are no times."""
    marks: tuple[str, ...] = ()

    @property
    def cell(self) -> Cell:
        return Cell(gpus=self.gpus, batch_size=self.batch_size)

    @property
    def is_of_several(self) -> bool:
        """Whether it has times of several GPUs that are not refused; one GPU may still have failed."""
        return self.gpus > 1 and self.status == "measured"

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

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"is_noise": self.is_noise}


@dataclass(frozen=True, kw_only=True)
class EpochGap:
    """From ideal to measured time of the first epoch, start-up included; the parts add up exactly."""

    ideal_s: float
    measured_s: float
    parts: tuple[Part, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"parts": [part.to_json() for part in self.parts]}


@dataclass(frozen=True, kw_only=True)
class Gap:
    """From ideal to measured time of a step; the parts add up to the difference exactly."""

    gpus: int
    batch_size: int
    ideal_s: float
    measured_s: float
    parts: tuple[Part, ...]
    epoch: EpochGap | None = None
    """None where an epoch has no length that could be told."""

    @property
    def cell(self) -> Cell:
        return Cell(gpus=self.gpus, batch_size=self.batch_size)

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {
            "parts": [part.to_json() for part in self.parts],
            "epoch": None if self.epoch is None else self.epoch.to_json(),
        }


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
    stopped_because: str = ""
    outlook: str = ""
    """What more time would buy."""
    remarks: list[str] = field(default_factory=list)
    threads_per_rank: int | None = None
    target: str = ""
    command: list[str] = field(default_factory=list)
    """The words after `samestep` that ask for the same again."""
    curves: list[dict[str, Any]] = field(default_factory=list)
    """Loss against steps, examples and seconds, one for each cell."""
    noise_scale: Mapping[str, Any] | None = None

    def cell(self, cell: Cell) -> CellResult | None:
        return next((found for found in self.cells if found.cell == cell), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "samestep": __version__,
            "command": self.command,
            "target": self.target,
            "threads_per_rank": self.threads_per_rank,
            "stopped_because": self.stopped_because,
            "outlook": self.outlook,
            "remarks": self.remarks,
            "cells": [dataclasses.asdict(cell) | {"marks": list(cell.marks)} for cell in self.cells],
            "gaps": [gap.to_json() for gap in self.gaps],
            "findings": [finding.to_json() for finding in self.findings],
            "fairness": [dataclasses.asdict(mark) for mark in self.fairness],
            "environment": dict(self.environment),
            "rounds": self.num_rounds,
            "precision": self.precision,
            "is_weak": self.is_weak,
            "curves": self.curves,
            "noise_scale": self.noise_scale,
        }
