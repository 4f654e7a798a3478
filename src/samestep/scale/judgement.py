"""Judgement: finished runs → the result. Pure: the same runs give the same result, on any machine."""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from samestep.scale import fairness
from samestep.scale.causes import Evidence, judged
from samestep.scale.cells import CellResult, Gap, Result
from samestep.scale.epochs import FIXED, epoch_gap, fixed_s
from samestep.scale.estimates import Estimates
from samestep.scale.gap import gap
from samestep.scale.looks import Look
from samestep.scale.plan import Plan, Sweep
from samestep.scale.runs import Facts, Finished
from samestep.scale.variants import Cell, Comparison


def judge(
    sweep: Sweep,
    runs: Sequence[Finished],
    *,
    has_norms: bool = False,
    looks: Mapping[int, Look] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Result:
    """Cells, gaps, marks and findings of a sweep, as far as it has come; `looks` are by number of ranks."""
    estimates = Estimates(runs, seed=sweep.seed)
    cells: list[CellResult] = []
    gaps, marks = [], []
    for comparison in sweep.comparisons:
        cell = _cell(comparison, estimates)
        said = []
        if cell.step_s:
            said = fairness.marks(comparison, estimates, cell, has_norms=has_norms, looks=looks or {})
        cell = dataclasses.replace(cell, marks=tuple(dict.fromkeys(mark.mark for mark in said)))
        if any(mark.is_refusal for mark in said):
            cell = dataclasses.replace(
                cell, status="refused", speedup=None, speedup_low=None, speedup_high=None, efficiency=None
            )
        elif (found := gap(comparison, estimates, has_norms=has_norms)) is not None:
            one = next((each for each in cells if each.cell == comparison.reference), None)
            gaps.append(_with_epoch(found, comparison, estimates, cell, one))
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
        result=result,
        comparisons=sweep.comparisons,
        estimates=estimates,
        has_norms=has_norms,
        looks=looks or {},
    )
    result.findings = judged(evidence)
    return result


def half_widths(result: Result) -> dict[Cell, float | None]:
    """Half of each cell's interval as a part of its time.

    Cells that failed have none to wait for, and of those that are refused nothing is told that a narrower
    one would make better.
    """
    given_up = ("failed", "refused")
    return {cell.cell: cell.relative_half_width for cell in result.cells if cell.status not in given_up}


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
    around = estimates.around(estimates.draws(full), step_s)
    examples = run.facts.examples_per_step or cell.batch_size
    found = dataclasses.replace(
        empty,
        status="measured",
        step_s=step_s,
        step_low_s=around.low,
        step_high_s=around.high,
        examples_per_s=examples / step_s if step_s > 0 else None,
        memory_bytes=max(each.facts.memory_bytes for each in measured if each.facts is not None),
        devices=dict(Counter(sorted(run.facts.devices))),
        num_rounds=len(measured),
        **_of_machine(run, run.facts, step_s),
    )
    found = dataclasses.replace(found, **_epoch(measured, run.facts, step_s, examples))
    if not estimates.has(one):
        return found
    if full == one:  # as fast as itself, however well that is known
        return dataclasses.replace(found, speedup=1.0, speedup_low=1.0, speedup_high=1.0, efficiency=1.0)
    # of the same batch that is T(1) / T(N); a batch that grows counts by its examples
    growth = cell.batch_size / comparison.reference.batch_size
    speedup = growth * estimates.value(one) / step_s
    ratio = estimates.around_difference(
        growth * estimates.draws(one) / estimates.draws(full), speedup, speedup
    )
    return dataclasses.replace(
        found,
        speedup=speedup,
        speedup_low=max(0.0, ratio.low),
        speedup_high=ratio.high,
        efficiency=speedup / cell.gpus,
    )


def _of_machine(run: Finished, facts: Facts, step_s: float) -> dict[str, Any]:
    """What a step used of the machine, as far as the one who started the run could see it."""
    if run.host is None:
        return {}
    return {
        "cpu_utilisation": facts.cpu_s / (step_s * run.host.num_cores),
        "gpu_utilisation": run.host.gpu_utilisation,
        "energy_j": None if run.host.power_w is None else run.host.power_w * step_s,
    }


def _epoch(runs: Sequence[Finished], facts: Facts, step_s: float, batch_size: float) -> dict[str, Any]:
    """An epoch's steps, its seconds, and what it costs beside steps.

    Of ranks that all draw the whole data set, an epoch has all of that.
    """
    loading = facts.loading
    num_examples = None if loading is None else loading.num_drawn or loading.num_examples
    if not num_examples and not facts.steps_per_epoch:
        return {}
    steps = facts.steps_per_epoch or math.ceil((num_examples or 0) / batch_size)
    fixed = {name: fixed_s(name, runs, steps) for name in FIXED}
    known = {name: median(by_round.values()) for name, by_round in fixed.items() if by_round}
    return {
        "steps_per_epoch": steps,
        "epoch_s": steps * step_s + known.get("evaluation", 0.0) + known.get("checkpoint", 0.0),
        "evaluation_s": known.get("evaluation"),
        "checkpoint_s": known.get("checkpoint"),
        "start_s": known.get("start-up"),
        "warm_up_s": known.get("compile and warm-up"),
    }


def _with_epoch(
    gap: Gap, comparison: Comparison, estimates: Estimates, cell: CellResult, one: CellResult | None
) -> Gap:
    if one is None or not cell.steps_per_epoch or not one.steps_per_epoch:
        return gap
    epoch = epoch_gap(gap, comparison, estimates, cell.steps_per_epoch, one.steps_per_epoch)
    return dataclasses.replace(gap, epoch=epoch)
