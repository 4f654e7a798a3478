"""Perfetto: the timeline of a sweep as a trace that chrome://tracing and ui.perfetto.dev open.

Trace Event Format (Google): an object whose "traceEvents" are complete events ("X", times in microseconds)
and metadata ("M"). A process is a rank of one run; its threads are its steps and the phases in them. Each run
begins at 0, so that numbers of GPUs can be compared.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from samestep import __version__
from samestep.errors import RecordError
from samestep.observed import Span
from samestep.report.sweep_runs import Spans, full_runs, spans_of

STEPS, PHASES = 1, 2
"""Numbers of the two threads."""


def write_trace(folder: Path, path: Path) -> int:
    """Write the trace of the sweep in `folder`; returns how many events it has."""
    found = [spans for runs in full_runs(folder).values() if (spans := spans_of(runs)) is not None]
    if not found:
        raise RecordError(
            f"A trace of {folder} was asked for, but no run in it has a timeline (runs/*-full-*/ranks); "
            "name the folder that `samestep scale --out` was given, with its runs."
        )
    trace = trace_of(found)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise RecordError(
            f"The trace was to be written to {path}, but that is not possible ({error.strerror}); "
            "name another file with --trace."
        ) from None
    return len(trace["traceEvents"])


def trace_of(runs: Iterable[Spans]) -> dict[str, Any]:
    """The trace as an object for `json.dumps`."""
    events: list[dict[str, Any]] = []
    process = 0
    for spans in runs:
        for rank, rows in spans.by_rank.items():
            process += 1
            name = f"{spans.run.cell}: rank {rank}"
            events += _names(process, name)
            phases = list(_one_after_another(rows))
            for step in sorted({row.step for row, _, _ in phases}):
                ends = [end for row, *both in phases if row.step == step for end in both]
                events.append(_complete(process, STEPS, f"step {step}", step, min(ends), max(ends)))
            for row, begin, end in phases:
                events.append(_complete(process, PHASES, row.phase or "other", row.step, begin, end))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"made by": f"Samestep {__version__}"},
    }


def _names(process: int, name: str) -> Iterator[dict[str, Any]]:
    def metadata(kind: str, thread: int, **values: Any) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": values}

    yield metadata("process_name", 0, name=name)
    yield metadata("process_sort_index", 0, sort_index=process)
    for thread, title in ((STEPS, "steps"), (PHASES, "phases")):
        yield metadata("thread_name", thread, name=title)
        yield metadata("thread_sort_index", thread, sort_index=thread)


def _one_after_another(rows: Sequence[Span]) -> Iterator[tuple[Span, int, int]]:
    """Phases in order, with their begin and end in whole nanoseconds; none begins before the last one ended.

    Rounding, or a clock that was read twice, would else make events of a thread overlap, which viewers
    do not draw.
    """
    begins = [round(row.began_s * 1e9) for row in rows]
    for row, begin, following in zip(rows, begins, [*begins[1:], None], strict=True):
        end = begin + round(row.seconds * 1e9)
        yield row, begin, end if following is None else min(end, following)


def _complete(process: int, thread: int, name: str, step: int, begin: int, end: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": "phase" if thread == PHASES else "step",
        "pid": process,
        "tid": thread,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "args": {"step": step},
    }
