"""Causes: one rule for each thing that takes speed away; told by what it costs.

A rule is a function of the evidence that yields at most one finding, on the cell that it costs most. What is
wrong whatever it costs (work that is done twice, one process that drives all GPUs) is told first.
"""

from dataclasses import replace

from samestep.findings import Finding
from samestep.scale.causes.checkpoint_dominates import checkpoint_dominates
from samestep.scale.causes.cpu_contention import cpu_contention
from samestep.scale.causes.data_parallel import data_parallel
from samestep.scale.causes.duplicated_work import duplicated_work
from samestep.scale.causes.evaluation_dominates import evaluation_dominates
from samestep.scale.causes.exchange_bound import exchange_bound
from samestep.scale.causes.input_bound import input_bound
from samestep.scale.causes.memory_not_pinned import memory_not_pinned
from samestep.scale.causes.norm_bound import norm_bound
from samestep.scale.causes.short_epoch import short_epoch
from samestep.scale.causes.stragglers import stragglers
from samestep.scale.causes.synchronous_calls import synchronous_calls
from samestep.scale.causes.too_little_work import too_little_work
from samestep.scale.causes.unsynchronised_clock import unsynchronised_clock
from samestep.scale.evidence import Evidence, Rule
from samestep.scale.variants import Cell

__all__ = ["CAUSES", "RULES", "Evidence", "judged"]

RULES: tuple[Rule, ...] = (
    duplicated_work,
    data_parallel,
    input_bound,
    too_little_work,
    cpu_contention,
    exchange_bound,
    norm_bound,
    stragglers,
    evaluation_dominates,
    checkpoint_dominates,
    synchronous_calls,
    memory_not_pinned,
    unsynchronised_clock,
    short_epoch,
)

CAUSES = (
    "duplicated-work", "data-parallel", "input-bound", "too-little-work-per-gpu", "cpu-contention",
    "exchange-bound", "norm-bound", "stragglers", "evaluation-dominates", "checkpoint-dominates",
    "synchronous-calls", "memory-not-pinned", "unsynchronised-clock", "short-epoch",
)  # fmt: skip
"""Every cause that a rule may name."""
_ALWAYS_FIRST = ("duplicated-work", "data-parallel")


def _with_doubt(finding: Finding, evidence: Evidence) -> Finding:
    """What rests on times of a machine that was busy with other work says so."""
    seen = finding.evidence
    if "share" not in seen:
        return finding
    cell = evidence.result.cell(Cell(gpus=seen["gpus"], batch_size=seen["batch_size"]))
    if cell is None or "busy" not in cell.marks:
        return finding
    doubt = "The machine was busy with other work, which may be the reason: measure again when it is free."
    return replace(finding, message=f"{finding.message} {doubt}")


def judged(evidence: Evidence) -> list[Finding]:
    """All findings: what is wrong whatever it costs, then by the share of the time that is lost."""
    found: list[Finding] = []
    for rule in RULES:
        for finding in rule(evidence):
            assert finding.cause in CAUSES
            found.append(_with_doubt(finding, evidence))
    found.sort(key=lambda f: (f.cause not in _ALWAYS_FIRST, -f.evidence.get("share", 0.0)))
    return found
