"""Sweep runs: what is left of the single runs of a sweep beside their times, for those who look closer.

    DIR/runs/NNN-KIND-NxB/ranks/…       rows of the probe, of which `Span` tells phases of single steps
                         /host.jsonl    how busy the machine was

Rows that are gone are no error: a folder may hold the answer alone. Draws nothing.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from samestep.errors import RecordError
from samestep.observations import Observations
from samestep.observed import Span
from samestep.scale.variants import Cell

MOST_SPANS = 5000
"""Of one rank."""
MOST_SAMPLES = 20_000
"""Of one run: more than an hour."""

_FULL = re.compile(r"^(?P<number>\d{1,9})-full-(?P<gpus>\d{1,6})x(?P<batch>\d{1,12})$")


@dataclass(frozen=True, kw_only=True)
class FullRun:
    """The folder of a run of the program as it is; `number` is its place in the sweep."""

    number: int
    cell: Cell
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Phases of a few steps of one run, by rank; seconds are from the first of them."""

    run: FullRun
    by_rank: dict[int, tuple[Span, ...]]
    has_one_clock: bool = True
    """Whether ranks can be compared; those of several machines begin at 0 each."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """How busy the machine was at one moment, in cores; utilisation of GPUs is from 0 to 1."""

    at_s: Annotated[float, Field(allow_inf_nan=False)]
    busy_cores: Annotated[float, Field(allow_inf_nan=False)] | None = None
    own_cores: Annotated[float, Field(allow_inf_nan=False)] | None = None
    gpu: tuple[Annotated[float, Field(allow_inf_nan=False)] | None, ...] | None = ()


_SAMPLE = TypeAdapter(Sample)


def full_runs(folder: Path) -> dict[Cell, list[FullRun]]:
    """By cell, the runs of the program as it is, in the order in which they were made."""
    found: dict[Cell, list[FullRun]] = {}
    matches = ((path, _FULL.match(path.name)) for path in folder.glob("runs/*-full-*x*"))
    for number, path, named in sorted((int(m["number"]), path, m) for path, m in matches if m is not None):
        cell = Cell(gpus=int(named["gpus"]), batch_size=int(named["batch"]))
        if cell.gpus and cell.batch_size:
            found.setdefault(cell, []).append(FullRun(number=number, cell=cell, folder=path))
    return dict(sorted(found.items()))


def spans_of(runs: Sequence[FullRun]) -> Spans | None:
    """The phases of the last run that has any: later ones are disturbed less by what starts up."""
    for run in reversed(runs):
        try:
            observations = Observations.read(run.folder)
        except (RecordError, OSError, ValueError):
            continue
        by_rank = {
            rank: tuple(islice(filter(_is_finite, observations.of(rank, Span)), MOST_SPANS))
            for rank in observations.ranks
        }
        by_rank = {rank: spans for rank, spans in by_rank.items() if spans}
        if by_rank:
            return _from_zero(run, by_rank)
    return None


def _is_finite(span: Span) -> bool:
    return math.isfinite(span.began_s) and math.isfinite(span.seconds)


def _from_zero(run: FullRun, by_rank: dict[int, tuple[Span, ...]]) -> Spans:
    begins = {rank: min(span.began_s for span in spans) for rank, spans in by_rank.items()}
    ends = {rank: max(span.began_s + span.seconds for span in spans) for rank, spans in by_rank.items()}
    # ranks take their steps together; times that do not overlap at all are of other clocks
    has_one_clock = max(begins.values()) < min(ends.values()) or len(by_rank) == 1
    first = min(begins.values())
    return Spans(
        run=run,
        by_rank={
            rank: tuple(
                Span(
                    step=span.step,
                    phase=span.phase,
                    began_s=span.began_s - (first if has_one_clock else begins[rank]),
                    seconds=max(0.0, span.seconds),
                )
                for span in sorted(spans, key=lambda span: span.began_s)
            )
            for rank, spans in by_rank.items()
        },
        has_one_clock=has_one_clock,
    )


def samples_of(run: FullRun) -> list[Sample]:
    """How busy the machine was during a run, in order; lines that cannot be read are passed over."""
    path = run.folder / "host.jsonl"
    try:
        with path.open("rb") as file:
            samples = list(islice(_samples(file), MOST_SAMPLES))
    except OSError:
        return []
    return sorted(samples, key=lambda sample: sample.at_s)


def _samples(lines: Iterator[bytes]) -> Iterator[Sample]:
    for line in lines:
        try:
            yield _SAMPLE.validate_python(json.loads(line))
        except (ValueError, ValidationError):
            continue
