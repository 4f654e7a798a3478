"""What the runs ran with: versions, machine, threads; where runs differ, the values of all."""

from collections.abc import Iterator, Mapping
from typing import Any

from samestep.record import Record
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.surroundings import Surroundings, surroundings
from samestep.report.sweep import Sweep
from samestep.report.wording import joined, label, told

MOST_VALUES = 60
_ABOUT = ("samestep", "torch", "python", "host", "devices", "threads", "mode", "shards", "precision", "seed",
          "batch_size", "accumulate", "overrides")  # fmt: skip


def _values(material: Material) -> Mapping[str, Any] | None:
    seen: dict[str, dict[str, None]] = {}
    pairs = [pair for found in surroundings(material) for pair in _of_run(found)]
    if material.sweep is not None:
        pairs += _of_sweep(material.sweep)
    if material.record is not None:
        pairs += _of_record(material.record)
    for name, value in pairs:
        seen.setdefault(name, {})[value] = None
    return {"rows": [(name, joined(list(values))) for name, values in seen.items()]} if seen else None


def _of_run(found: Surroundings) -> Iterator[tuple[str, str]]:
    start, machine, group = found
    yield "samestep", start.samestep
    if machine is not None:
        yield "torch", machine.torch
    yield "python", start.python
    yield "host", start.host
    if machine is not None:
        yield "device", machine.device
        yield "threads a rank", told(machine.num_threads)
        yield "deterministic algorithms", told(machine.is_deterministic)
        yield "precision of matrix products", machine.matmul_precision
    if group is not None:
        yield "backend", group.backend


def _of_sweep(sweep: Sweep) -> Iterator[tuple[str, str]]:
    environment = {label(name): value for name, value in sweep.environment.items()}
    for name, value in list(environment.items())[:MOST_VALUES]:
        if value not in (None, "", [], {}):
            yield name, _alike(value)
    if sweep.threads_per_rank is not None and not any("threads" in name for name in environment):
        yield "threads a rank", told(sweep.threads_per_rank)


def _of_record(record: Record) -> Iterator[tuple[str, str]]:
    about = record.about
    conditions = about.get("conditions")
    merged = dict(conditions) if isinstance(conditions, dict) else {}
    for name in _ABOUT:
        value = about.get(name, merged.get(name))
        if value not in (None, "", []):
            yield label(name), _alike(value)
    for name, value in merged.items():
        if name not in _ABOUT and value is not None:
            yield label(name), told(value)


def _alike(value: Any) -> str:
    """Things of which there is one a rank: "cpu × 2"."""
    if isinstance(value, list) and len(value) > 1 and len(set(map(str, value))) == 1:
        return f"{value[0]} × {len(value)}"
    return told(value)


SECTION = Section(name="environment", title="Environment", values=_values)
