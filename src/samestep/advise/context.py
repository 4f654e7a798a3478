"""Context: what a sweep tells beside the time of its steps: start-up, epochs, the bars of its gaps, noise.

Reads scale.json as `samestep scale` writes it; what is missing there is None, and nothing is made up for it.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.advise.offers import Overheads
from samestep.findings import Finding
from samestep.record import read_json

FILE = "scale.json"
_DUPLICATED = "duplicated-work"


def cells_digest(folder: Path) -> str:
    """Of the cells of a sweep: another one, if it was measured again."""
    cells = (read_json(folder / FILE) or {}).get("cells")
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A part of what a step takes more than ideal; noise, if it may be nothing."""

    name: str
    seconds: float
    is_noise: bool


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Where the step of a cell goes: the bars add up to measured minus ideal."""

    gpus: int
    batch_size: float
    ideal_s: float
    measured_s: float
    bars: tuple[Bar, ...]

    def seconds(self, name: str) -> float:
        """What a bar takes; 0 if it is noise or there is none."""
        return sum(bar.seconds for bar in self.bars if bar.name == name and not bar.is_noise)

    @property
    def largest(self) -> Bar | None:
        """The bar that takes most, of those that surely take something."""
        taking = [bar for bar in self.bars if bar.seconds > 0 and not bar.is_noise]
        return max(taking, key=lambda bar: bar.seconds, default=None)


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The gradient noise scale in examples, with its interval as far as it has ends."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is known of a job beside its steps."""

    overheads: Overheads
    examples_per_epoch: float | None = None
    noise: NoiseScale | None = None
    bars: tuple[Bars, ...] = ()
    """In order of GPUs, and of batches."""
    duplicated: Finding | None = None
    """Said by a sweep whose ranks all do the same work: then no speed of more GPUs means anything."""
    marks: tuple[str, ...] = ()
    """What makes the comparison of a sweep worth less, as slugs."""

    @property
    def has_start(self) -> bool:
        return bool(self.overheads.start_s)

    def of_batches(self, batches: Mapping[int, float]) -> "Context":
        """With the bars of these global batches only, by GPUs: those of others are parts of other steps."""
        bars = [each for each in self.bars if math.isclose(each.batch_size, batches.get(each.gpus, 0.0))]
        return replace(self, bars=tuple(bars))

    def bars_at(self, gpus: int) -> Bars | None:
        """The bars of so many GPUs, else of the most that have any."""
        known = [bars for bars in self.bars if bars.gpus == gpus] or list(self.bars)
        return known[-1] if known else None


NOTHING = Context(overheads=Overheads(start_s={}, epoch_s={}))


def read_context(folders: Iterable[Path]) -> Context:
    """What sweeps of one job tell. Of figures that several have, the last counts; of epochs, the longest."""
    sweeps = [sweep for folder in folders if (sweep := read_json(folder / FILE)) is not None]
    cells = [
        cell for sweep in sweeps for cell in _objects(sweep.get("cells")) if _is_number(cell.get("gpus"))
    ]
    epochs = [
        cell["steps_per_epoch"] * cell["batch_size"]
        for cell in cells
        if _is_number(cell.get("steps_per_epoch")) and _is_number(cell.get("batch_size"))
    ]
    noises = [noise for sweep in sweeps if (noise := _noise(sweep.get("noise_scale"))) is not None]
    gaps = [_bars(gap) for sweep in sweeps for gap in _objects(sweep.get("gaps")) if "batch_size" in gap]
    bars = {(gap.gpus, gap.batch_size): gap for gap in gaps}
    findings = [row for sweep in sweeps for row in _objects(sweep.get("findings"))]
    marks = [row for sweep in sweeps for row in _objects(sweep.get("fairness"))]
    return Context(
        overheads=Overheads(
            start_s=_summed(
                [cell for cell in cells if _is_number(cell.get("start_s"))], ("start_s", "warm_up_s")
            ),
            epoch_s=_summed(cells, ("evaluation_s", "checkpoint_s")),
        ),
        examples_per_epoch=max(epochs, default=None),
        noise=noises[-1] if noises else None,
        bars=tuple(bars[place] for place in sorted(bars)),
        duplicated=next((_finding(row) for row in findings if row.get("cause") == _DUPLICATED), None),
        marks=tuple(dict.fromkeys(str(row["mark"]) for row in marks if row.get("mark"))),
    )


def _summed(cells: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> dict[int, float]:
    """By GPUs, the sum of those of some fields that are known."""
    found = {}
    for cell in cells:
        known = [float(cell[name]) for name in names if _is_number(cell.get(name))]
        if known:
            found[int(cell["gpus"])] = max(0.0, sum(known))
    return found


def _bars(gap: Mapping[str, Any]) -> Bars:
    return Bars(
        gpus=int(gap["gpus"]),
        batch_size=float(gap["batch_size"]),
        ideal_s=float(gap["ideal_s"]),
        measured_s=float(gap["measured_s"]),
        bars=tuple(
            Bar(
                name=str(part["name"]),
                seconds=float(part["seconds"]),
                is_noise=part["low"] <= 0 <= part["high"],
            )
            for part in _objects(gap.get("parts"))
        ),
    )


def _finding(row: Mapping[str, Any]) -> Finding:
    return Finding(cause=str(row["cause"]), message=str(row.get("message", "")), fix=str(row.get("fix", "")))


def _noise(value: object) -> NoiseScale | None:
    if not isinstance(value, Mapping):
        return None
    known = {
        name: float(value[name]) if _is_number(value.get(name)) else None for name in ("value", "low", "high")
    }
    return NoiseScale(**known) if any(number is not None for number in known.values()) else None


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
