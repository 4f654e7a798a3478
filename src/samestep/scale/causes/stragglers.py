"""Stragglers: ranks that wait in every step for the slowest of them."""

from collections.abc import Iterator, Sequence

from samestep.findings import Finding
from samestep.scale.evidence import Evidence, cost_of, on_gpus, others, told_s
from samestep.scale.gap import WAITING

UNEVEN = 1.05
"""The largest share of a batch over the mean share, from which on shares are the reason."""


def stragglers(evidence: Evidence) -> Iterator[Finding]:
    """The slowest rank of a step is slower than ranks are on average: always the same, or each in turn."""
    found = [each for each in evidence.costly(WAITING) if _are_joined(evidence, each.gap.gpus)]
    if not found:
        return
    worst = found[0]
    cell = worst.gap.cell
    facts = evidence.facts(cell, "silent")
    times = () if facts is None else facts.rank_step_s
    shares = () if facts is None or facts.rank_examples is None else facts.rank_examples
    why, fix, rank = _reason(times, shares, worst.part.seconds)
    yield Finding(
        cause="stragglers",
        message=f"{on_gpus(cell)} ranks wait for the slowest: {cost_of(worst)}. {why}",
        evidence={
            "gpus": cell.gpus, "batch_size": cell.batch_size, "seconds": worst.part.seconds,
            "share": worst.share, "rank": rank, "rank_step_s": list(times), "rank_examples": list(shares),
            "cells": others(found),
        },
        fix=fix,
    )  # fmt: skip


def _are_joined(evidence: Evidence, gpus: int) -> bool:
    """Ranks that know nothing of each other do not wait."""
    look = evidence.looks.get(gpus)
    return look is None or look.is_joined


def _reason(times: Sequence[float], shares: Sequence[float], cost: float) -> tuple[str, str, int | None]:
    """Why, what to do, and which rank if it is always the same."""
    slowest = max(range(len(times)), key=times.__getitem__, default=None)
    # a rank that is behind the fastest by half of the wait or more is the one that is waited for
    if slowest is None or times[slowest] - min(times) < cost / 2:
        return (
            "It is another rank each time: some steps take long on some ranks.",
            "make examples more alike in size (sort them by length, bucket them), and look for what else "
            "runs on the host",
            None,
        )
    each, fastest = told_s(times[slowest]), told_s(min(times))
    why = f"It is mostly rank {slowest}: {each} a step, and the fastest takes {fastest}."
    if shares and sum(shares) and max(shares) * len(shares) / sum(shares) >= UNEVEN:
        told = ", ".join(f"{share:g}" for share in shares[:16])
        why += f" The ranks have unequal shares of a batch: {told} examples."
        return why, "share the batch out evenly: a batch that is a multiple of the number of GPUs", slowest
    return (
        why,
        f"compare the device, clock limit, cores and neighbours of rank {slowest} with the others'",
        slowest,
    )
