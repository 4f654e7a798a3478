"""CPU contention: ranks that slow each other down by being on one host."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.cells import CellResult
from samestep.scale.evidence import MATTERS, Evidence, cost_of, on_gpus, others
from samestep.scale.gap import SHARING
from samestep.scale.runs import Facts
from samestep.scale.variants import Cell


def cpu_contention(evidence: Evidence) -> Iterator[Finding]:
    """A rank that is faster alone than beside others, with nothing to exchange and nothing to fetch.

    Threads that wait for a core slow down every part of a step, so much that one round takes all the time
    there is, and no bar can be told from noise: if ranks that compute on the host have more threads than it
    has cores, and take longer than one rank, that is told too.
    """
    found = evidence.costly(SHARING)
    if not found:
        yield from _beyond_the_cores(evidence)
        return
    worst = found[0]
    cell = worst.gap.cell
    facts, cores = evidence.facts(cell, "cached"), evidence.num_cores(cell)
    threads = sum(facts.num_threads) if facts is not None else 0
    if facts is not None and cores is not None and threads > cores:
        why, fix = f"They run {_count(cell, facts, cores)}.", _fewer(cell, cores)
    else:
        told = f" ({threads} threads on {cores} cores)" if cores is not None and threads else ""
        why = f"They do not lack cores{told}; memory bandwidth, caches, a bus or a device may be short."
        fix = (
            "bind ranks to cores and memory of their own (numactl), spread them over more hosts, or use fewer"
        )
    yield Finding(
        cause="cpu-contention",
        message=f"{on_gpus(cell)} ranks slow each other down by sharing the host: a rank beside others loses "
        f"{cost_of(worst)} against one alone. {why}",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": worst.part.seconds,
            "share": worst.share, "num_threads": threads, "num_cores": cores, "cells": others(found),
        },
        fix=fix,
    )  # fmt: skip


def _beyond_the_cores(evidence: Evidence) -> Iterator[Finding]:
    for gap in sorted(evidence.result.gaps, key=lambda gap: -gap.measured_s):
        cell, result = gap.cell, evidence.result.cell(gap.cell)
        facts, cores = evidence.facts(cell), evidence.num_cores(cell)
        if result is None or result.speedup is None or facts is None or cores is None:
            continue
        is_told = any(not part.is_noise for part in gap.parts)
        if not facts.is_on_host or sum(facts.num_threads) <= cores or is_told:
            continue
        if not _is_slower(evidence, result):
            continue
        lost = 1 - result.speedup
        yield Finding(
            cause="cpu-contention",
            message=f"{on_gpus(cell)} ranks run {_count(cell, facts, cores)}, and a step takes "
            f"{1 / result.speedup:.3g} times as long as on one. Threads that wait for a core take time in "
            "every part of a step, which is why no part can be told from noise.",
            evidence={
                "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": lost * gap.measured_s,
                "share": lost, "num_threads": sum(facts.num_threads), "num_cores": cores,
            },
            fix=_fewer(cell, cores),
        )  # fmt: skip
        return


def _is_slower(evidence: Evidence, result: CellResult) -> bool:
    """Whether steps of one GPU at their slowest get through more than steps of several at their fastest.

    By the steps' own intervals: that of a speedup from one round reaches from nothing to twice of it.
    """
    one = evidence.reference(result.cell)
    if one is None or one.step_high_s is None or not result.step_low_s:
        return False
    growth = result.batch_size / one.batch_size
    return growth * one.step_high_s / result.step_low_s < 1 - MATTERS


def _count(cell: Cell, facts: Facts, cores: int) -> str:
    each = max(facts.num_threads)
    return f"{sum(facts.num_threads)} threads ({cell.gpus} ranks of {each}) on {cores} cores"


def _fewer(cell: Cell, cores: int) -> str:
    fair = cores // cell.gpus
    if not fair:
        return f"use at most {cores} ranks on this host"
    return f"give each rank {fair} thread{'s' * (fair > 1)} (--threads, OMP_NUM_THREADS)"
