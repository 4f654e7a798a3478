"""Randomness: draws that must differ between ranks, and between the workers of a loader."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.observed import Randomness
from samestep.verify.evidence import Evidence
from samestep.verify.trace import RankTrace, Trace


def equal_workers(evidence: Evidence) -> Iterator[Finding]:
    """Workers of one loader that begin with the same random state and use it."""
    for trace in (evidence.candidate, evidence.reference):
        for rank, of_rank in trace.ranks.items():
            for i, worker in enumerate(of_rank.workers):
                for other in of_rank.workers[i + 1 :]:
                    if (worker.loader, worker.number) != (other.loader, other.number):
                        continue
                    used = _alike(worker.random, other.random, {*worker.moved} & {*other.moved})
                    if used and worker.worker != other.worker:
                        loader = of_rank.loaders.get(worker.loader)
                        where = loader.where if loader else ""
                        yield Finding(
                            cause="workers-with-equal-seeds",
                            message=f"Workers {worker.worker} and {other.worker} of a loader on rank {rank} "
                            "begin "
                            f"with the same state of {used}'s generator and draw from it: their examples get "
                            "the same random changes.",
                            evidence={"rank": rank, "workers": [worker.worker, other.worker],
                                      "generator": used, "where": where},
                            fix="seed each worker from torch.initial_seed(), which differs between workers "
                            "and "
                            "epochs" + (f" ({where})" if where else ""),
                        )  # fmt: skip
                        return


def same_randomness(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that draw the same random numbers for different examples."""
    if evidence.has("workers-with-equal-seeds", "same-examples-on-every-rank", "world-ignored"):
        return
    candidate = evidence.candidate
    first, *others = candidate.ranks.values()
    for other in others:
        found = _in_loader(first, other) or _in_workers(first, other) or _in_loop(candidate, first, other)
        if found:
            generator, what, where = found
            yield Finding(
                cause="same-randomness-on-every-rank",
                message=f"Ranks {first.rank} and {other.rank} have the same state of {generator}'s "
                "generator when "
                f"{what}: both draw the same random numbers.",
                evidence={"ranks": [first.rank, other.rank], "generator": generator, "where": where},
                fix="seed the generators by seed + rank once the model is made (or draw by example)"
                + (f" ({where})" if where else ""),
            )
            return


def _in_loader(a: RankTrace, b: RankTrace) -> tuple[str, str, str] | None:
    moved = [
        {name for batch in trace.batches if batch.loader in trace.training_loaders for name in batch.moved}
        for trace in (a, b)
    ]
    if not moved[0] & moved[1]:
        return None
    for number in sorted(a.training_loaders):
        starts = [[p for p in trace.passes if p.loader == number] for trace in (a, b)]
        for one, two in zip(*starts, strict=False):
            used = _alike(one.random, two.random, moved[0] & moved[1])
            if used:
                return used, "examples are fetched, which draws from it", a.loaders[number].where
    return None


def _in_workers(a: RankTrace, b: RankTrace) -> tuple[str, str, str] | None:
    others = {(w.loader, w.number, w.worker): w for w in b.workers}
    for worker in a.workers:
        other = others.get((worker.loader, worker.number, worker.worker))
        if other is None or worker.loader not in a.training_loaders:
            continue
        used = _alike(worker.random, other.random, {*worker.moved} & {*other.moved})
        if used:
            where = a.loaders[worker.loader].where if worker.loader in a.loaders else ""
            return used, f"worker {worker.worker} fetches examples, which draws from it", where
    return None


def _in_loop(trace: Trace, a: RankTrace, b: RankTrace) -> tuple[str, str, str] | None:
    """Draws between the loader and the model: the state moved in a step, and neither of them did it."""
    for number in range(1, trace.num_full):
        here, there = a.steps.get(number), b.steps.get(number)
        after = a.steps.get(number + 1)
        if here is None or there is None or after is None:
            continue
        if here.random is None or there.random is None or after.random is None:
            continue
        moved = {name for step in (here, after) for call in step.calls for name in call.moved}
        moved |= {name for batch in a.batches if batch.step in (number, number + 1) for name in batch.moved}
        if any(p.step in (number, number + 1) for p in a.passes):
            continue
        for name in ("torch", "numpy", "python"):
            states = [getattr(s.random.random, name) for s in (here, there, after) if s.random is not None]
            if name not in moved and None not in states and states[0] == states[1] != states[2]:
                return name, "the training loop draws from it", ""
    return None


def _alike(a: Randomness, b: Randomness, names: set[str]) -> str | None:
    for name in ("torch", "numpy", "python"):
        if name in names and getattr(a, name) is not None and getattr(a, name) == getattr(b, name):
            return name
    return None
