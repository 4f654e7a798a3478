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
                            f"begin with the same state of {used}'s generator and draw from it: their "
                            "examples get the same random changes.",
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
        found = None
        if not _are_examples_fixed(evidence):
            found = _in_loader(first, other) or _in_workers(first, other)
        if found is None and evidence.pair is not None and not evidence.pair.comparison.is_equal:
            found = _in_loop(candidate, first, other)  # draws for all ranks together leave no difference
        if found:
            generator, what, where = found
            yield Finding(
                cause="same-randomness-on-every-rank",
                message=f"Ranks {first.rank} and {other.rank} have the same state of {generator}'s "
                f"generator when {what}: both draw the same random numbers.",
                evidence={"ranks": [first.rank, other.rank], "generator": generator, "where": where},
                fix="seed the generators by seed + rank once the model is made (or draw by example)"
                + (f" ({where})" if where else ""),
            )
            return


def _are_examples_fixed(evidence: Evidence) -> bool:
    """Whether examples are the same in another run as it is: then they do not depend on the generators."""
    known: dict[tuple[int, int, int], str] = {}
    for batch in evidence.reference.first.batches:
        if batch.indices is not None and len(batch.indices) == len(batch.examples):
            keys = ((batch.loader, batch.number, index) for index in batch.indices)
            known.update(zip(keys, batch.examples, strict=True))
    same = [
        known[key] == name
        for rank in evidence.candidate.ranks.values()
        for batch in rank.batches
        if batch.loader in rank.training_loaders and len(batch.indices or ()) == len(batch.examples)
        for index, name in zip(batch.indices or (), batch.examples, strict=True)
        if (key := (batch.loader, batch.number, index)) in known
    ]
    return bool(same) and all(same)


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
                where = a.loaders[number].where if number in a.loaders else ""
                return used, "examples are fetched, which draws from it", where
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
    """Draws between the loader and the model, from the same state on both ranks."""
    for number in range(1, trace.num_full):
        here, there = (rank.steps[number].random for rank in (a, b))
        if here is not None and there is not None:
            used = _alike(here.random, there.random, a.draws_in_loop(number))
            if used:
                return used, "the training loop draws from it", ""
    return None


def _alike(a: Randomness, b: Randomness, names: set[str]) -> str | None:
    for name in ("torch", "numpy", "python"):
        if name in names and getattr(a, name) is not None and getattr(a, name) == getattr(b, name):
            return name
    return None
