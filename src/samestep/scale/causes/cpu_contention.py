"""CPU contention: ranks that slow each other down by being on one host."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, cost_of, on_gpus, others
from samestep.scale.gap import SHARING


def cpu_contention(evidence: Evidence) -> Iterator[Finding]:
    """A rank that is faster alone than beside others, with nothing to exchange and nothing to fetch."""
    found = evidence.costly(SHARING)
    if not found:
        return
    worst = found[0]
    cell = worst.gap.cell
    facts, cores = evidence.facts(cell, "cached"), evidence.num_cores(cell)
    threads = sum(facts.num_threads) if facts is not None else 0
    each = max(facts.num_threads, default=0) if facts is not None else 0
    if cores is not None and threads > cores:
        why = f"They run {threads} threads ({cell.gpus} ranks of {each}) on {cores} cores."
        fair = cores // cell.gpus
        fix = (
            f"give each rank {fair} thread{'s' * (fair > 1)} (--threads, OMP_NUM_THREADS)"
            if fair
            else f"use at most {cores} ranks on this host"
        )
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
