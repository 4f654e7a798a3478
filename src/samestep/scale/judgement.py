"""Judgement: finished runs → the result. Pure: the same runs give the same result, on any machine."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from samestep.scale import fairness
from samestep.scale.causes import Evidence, judged
from samestep.scale.cells import CellResult, Result
from samestep.scale.estimates import Estimates
from samestep.scale.gap import gap
from samestep.scale.plan import Plan, Sweep
from samestep.scale.runs import Facts, Finished
from samestep.scale.statistics import interval
from samestep.scale.variants import Cell, Comparison


def judge(
    sweep: Sweep,
    runs: Sequence[Finished],
    *,
    has_norms: bool = False,
    environment: Mapping[str, Any] | None = None,
) -> Result:
    """Cells, gaps, marks and findings of a sweep, as far as it has come."""
    estimates = Estimates(runs, seed=sweep.seed)
    cells, gaps, marks = [], [], []
    for comparison in sweep.comparisons:
        cell = _cell(comparison, estimates)
        said = fairness.marks(comparison, estimates, cell, has_norms=has_norms) if cell.step_s else []
        cell = dataclasses.replace(cell, marks=tuple(mark.mark for mark in said))
        if any(mark.is_refusal for mark in said):
            cell = dataclasses.replace(
                cell, status="refused", speedup=None, speedup_low=None, speedup_high=None, efficiency=None
            )
        elif (found := gap(comparison, estimates, has_norms=has_norms)) is not None:
            gaps.append(found)
        cells.append(cell)
        marks += said
    result = Result(
        cells=cells,
        gaps=gaps,
        fairness=marks,
        environment=environment or {},
        num_rounds=Plan(sweep, runs, has_norms=has_norms).num_rounds,
        precision=sweep.precision,
        is_weak=sweep.is_weak,
    )
    evidence = Evidence(
        result=result, comparisons=sweep.comparisons, estimates=estimates, has_norms=has_norms
    )
    result.findings = judged(evidence)
    return result


def half_widths(result: Result) -> dict[Cell, float | None]:
    """Half of each cell's interval as a part of its time; of cells that failed there is none to wait for."""
    return {cell.cell: cell.relative_half_width for cell in result.cells if cell.status != "failed"}


def _cell(comparison: Comparison, estimates: Estimates) -> CellResult:
    cell = comparison.cell
    roles = comparison.roles(has_norms=False)
    full, one = roles["full"], roles["one"]
    empty = CellResult(
        gpus=cell.gpus,
        batch_size=cell.batch_size,
        batch_per_gpu=cell.batch_per_gpu,
        ideal_speedup=float(cell.gpus),
        status="not measured",
    )
    if not estimates.has(full):
        tried = estimates.runs.get(full, [])
        return dataclasses.replace(empty, status="failed", reason=tried[-1].reason) if tried else empty
    measured = estimates.measured(full)
    run = measured[-1]
    assert run.facts is not None, "a run that is measured has facts"
    step_s = estimates.value(full)
    around = interval(estimates.draws(full), step_s)
    examples = run.facts.examples_per_step or cell.batch_size
    found = dataclasses.replace(
        empty,
        status="measured",
        step_s=step_s,
        step_low_s=around.low,
        step_high_s=around.high,
        examples_per_s=examples / step_s if step_s > 0 else None,
        memory_bytes=max(each.facts.memory_bytes for each in measured if each.facts is not None),
        num_rounds=len(measured),
        cpu_utilisation=None if run.host is None else run.facts.cpu_s / (step_s * run.host.num_cores),
    )
    found = dataclasses.replace(found, **_epoch(run, run.facts, step_s, cell.batch_size))
    if not estimates.has(one):
        return found
    # of the same batch that is T(1) / T(N); a batch that grows counts by its examples
    growth = cell.batch_size / comparison.reference.batch_size
    speedup = growth * estimates.value(one) / step_s
    ratio = interval(growth * estimates.draws(one) / estimates.draws(full), speedup)
    return dataclasses.replace(
        found,
        speedup=speedup,
        speedup_low=ratio.low,
        speedup_high=ratio.high,
        efficiency=speedup / cell.gpus,
    )


def _epoch(run: Finished, facts: Facts, step_s: float, batch_size: int) -> dict[str, Any]:
    """An epoch's steps and seconds; evaluation and checkpoints are spread over the steps that were seen."""
    num_examples = None if facts.loading is None else facts.loading.num_examples
    if not num_examples or not run.num_steps:
        return {}
    steps = math.ceil(num_examples / batch_size)
    epochs = run.num_steps / steps
    evaluation_s, checkpoint_s = facts.evaluation_s / epochs, facts.checkpoint_s / epochs
    return {
        "steps_per_epoch": steps,
        "epoch_s": steps * step_s + evaluation_s + checkpoint_s,
        "evaluation_s": evaluation_s,
        "checkpoint_s": checkpoint_s,
    }
