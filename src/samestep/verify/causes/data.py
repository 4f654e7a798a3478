"""Which examples ranks are given: each once, no matter how many ranks there are."""

import math
from collections import Counter
from collections.abc import Iterator

from samestep.findings import Finding
from samestep.observed import Loader, PassEnd
from samestep.verify.evidence import Evidence
from samestep.verify.trace import RankTrace, Trace

_SIZE_NAMES = ("num_replicas", "world_size", "num_processes", "world", "num_shards", "n_replicas", "size")
_RANK_NAMES = ("rank", "process_index", "shard_id", "shard", "replica", "local_rank")


def sampler_knows_no_world(evidence: Evidence) -> Iterator[Finding]:
    """A sampler that was made before the process group existed, and took itself to be alone."""
    live = {rank: trace.group for rank, trace in evidence.candidate.ranks.items()}
    for number, loader in _training_loaders(evidence.candidate.first):
        settings = loader.sampler_settings
        size = next(((n, settings[n]) for n in _named(settings, _SIZE_NAMES)), None)
        group = live[min(live)]
        if size is None or group is None or not _is_number(size[1]):
            continue
        told, true = int(float(size[1])), group.world_size
        ranks = {
            rank: [trace.loaders[number].sampler_settings.get(n) for n in _named(settings, _RANK_NAMES)]
            for rank, trace in evidence.candidate.ranks.items()
            if number in trace.loaders
        }
        all_alike = len(ranks) > 1 and len({str(values) for values in ranks.values()}) == 1
        if told < true and (all_alike or told == 1) and _overlap(evidence.candidate):
            yield Finding(
                cause="sampler-knows-no-world",
                message=f"{loader.sampler} says {size[0]}={told} on every rank, but the process group has "
                f"{true} ranks: each takes the examples of all.",
                evidence={"sampler": loader.sampler, "settings": dict(settings), "world_size": true,
                          "where": loader.where},
                fix=f"make the sampler after init_process_group, or give it num_replicas={true} and the rank "
                f"then{_at(loader)}",
            )  # fmt: skip


def same_examples(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that train on the same examples, at the same time or each on all of them."""
    if evidence.has("sampler-knows-no-world", "world-ignored"):
        return
    candidate, reference = evidence.candidate, evidence.reference
    shared = _overlap(candidate)
    whole = _whole_passes(candidate, reference)
    if not shared and not whole:
        return
    loader = next((loader for _, loader in _training_loaders(candidate.first)), None)
    told: dict[str, object] = {"where": loader.where if loader else ""}
    if shared:
        step, ranks, count, example = shared
        told |= {"step": step, "ranks": list(ranks), "shared_examples": count, "example": str(example)}
        text = f"In step {step}, ranks {ranks[0]} and {ranks[1]} trained on the same {count} examples"
    else:
        text = "Every rank goes through the whole data set in each pass"
        told |= {"examples_a_rank": whole}
    sampler = f" {loader.sampler} does not share them out." if loader and not loader.is_iterable else ""
    yield Finding(
        cause="same-examples-on-every-rank",
        message=f"{text}: the ranks do the same work again.{sampler}",
        evidence=told,
        fix=_how_to_share(loader) + _at(loader),
    )


def _how_to_share(loader: Loader | None) -> str:
    if loader is None:
        return "have each rank take its own part of the examples of a step"
    if loader.is_iterable:
        return "have the data set yield every N-th example on each of N ranks, beginning with the rank's"
    return "give the DataLoader a sampler that shares examples out over ranks, such as DistributedSampler"


def uneven_steps(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that have different numbers of batches, so that some wait for others that have finished."""
    candidate = evidence.candidate
    if evidence.has("world-ignored"):
        return
    for number, loader in _training_loaders(candidate.first):
        ends = [
            {n: p.num_batches for n, p in _pass_ends(trace, number).items()}
            for trace in candidate.ranks.values()
        ]
        planned = [
            {p.number: p.num_planned for p in trace.passes if p.loader == number}
            for trace in candidate.ranks.values()
        ]
        has_run = evidence.candidate_run.status == "finished"
        for source in (ends,) if has_run else (ends, planned):
            common = set.intersection(*(set(each) for each in source))
            for pass_number in sorted(common):
                counts = [each[pass_number] for each in source]
                if None in counts or len(set(counts)) == 1:
                    continue
                yield Finding(
                    cause="uneven-steps",
                    message=f"In pass {pass_number} ranks have {_listed(counts)} batches: "
                    + (
                        "those with more wait for ever for those with fewer."
                        if evidence.candidate_run.status in ("stalled", "failed")
                        else "they do not take the same steps."
                    ),
                    evidence={"batches": dict(zip(candidate.ranks, counts, strict=True)),
                              "where": loader.where},
                    fix="give every rank the same number of batches, also where the data set does not divide "
                    "evenly" + _at(loader),
                )  # fmt: skip
                return


def epoch_not_set(evidence: Evidence) -> Iterator[Finding]:
    """A sampler that shuffles by the epoch and is never told which one it is."""
    for trace in (evidence.candidate.first, evidence.reference.first):
        for number, loader in _training_loaders(trace):
            trained = {b.number for step in trace.steps.values() for b in step.batches if b.loader == number}
            passes = [p for p in trace.passes if p.loader == number and p.number in trained]
            if len(passes) < 2 or not loader.has_set_epoch:
                continue
            # by their places: after the steps that are written in full, only some batches are
            one, other = (
                {
                    b.batch: b.indices or ()
                    for b in trace.batches
                    if (b.loader, b.number) == (number, p.number)
                }
                for p in passes[:2]
            )
            common = sorted(one.keys() & other.keys())
            first, second = ([i for place in common for i in of[place]] for of in (one, other))
            stuck = passes[0].sampler_settings.get("epoch") == passes[1].sampler_settings.get("epoch")
            if len(first) > 2 and first == second and first != sorted(first) and stuck:
                yield Finding(
                    cause="epoch-not-set",
                    message=f"Pass 2 has the examples in the order of pass 1: {loader.sampler} shuffles by "
                    "the epoch, and nobody tells it.",
                    evidence={"first_indices": first[:8], "epoch": passes[0].sampler_settings.get("epoch"),
                              "where": loader.where},
                    fix="call sampler.set_epoch(epoch) before each pass over the loader" + _at(loader),
                )  # fmt: skip
                return


def repeated_or_dropped(evidence: Evidence) -> Iterator[Finding]:
    """Passes that do not have each example as often as on one rank."""
    if evidence.has("same-examples-on-every-rank", "sampler-knows-no-world", "uneven-steps", "world-ignored"):
        return
    yield from coverage(evidence, evaluation=False)


def coverage(evidence: Evidence, *, evaluation: bool) -> Iterator[Finding]:
    """Compare how often examples come in a pass on all ranks together with the reference's pass."""
    candidate, reference = evidence.candidate, evidence.reference
    numbers = candidate.first.evaluation_loaders if evaluation else candidate.first.training_loaders
    names = (
        ("evaluation-padded", "evaluation-padded")
        if evaluation
        else ("examples-repeated", "examples-dropped")
    )
    for number in sorted(numbers):
        loader = candidate.first.loaders.get(number)
        if loader is None:
            continue
        ours = _pass_ends(reference.first, number)
        theirs = [_pass_ends(trace, number) for trace in candidate.ranks.values()]
        for pass_number, one in ours.items():
            parts = [each.get(pass_number) for each in theirs]
            if one.num_examples is None or any(p is None or p.num_examples is None for p in parts):
                continue
            if evaluation and all(p.multiset == one.multiset for p in parts if p is not None):
                continue  # every rank evaluates everything: more work, the same number
            if any(n > 1 for n in _indices_of(reference, number, pass_number).values()):
                continue  # drawn with replacement
            if not evaluation and _comes_once(candidate, number, pass_number, one.num_examples):
                continue
            total = sum(p.num_examples or 0 for p in parts if p is not None)
            prints = [p.multiset for p in parts if p is not None]
            if None not in prints and sum(m for m in prints if m is not None) % 2**64 == one.multiset:
                continue
            extra, missing = _counted(candidate, reference, number, pass_number)
            if total == one.num_examples and not extra and None in prints:
                continue  # each rank has a data set of its own, whose indices mean nothing to others
            if total > one.num_examples or extra:
                count = total - one.num_examples if total > one.num_examples else extra.total()
                which = f", such as number {next(iter(extra))}" if extra else ""
                yield Finding(
                    cause=names[0],
                    message=f"{_purpose(evaluation)} {pass_number} on {evidence.world_size} ranks has "
                    f"{total} examples and on one rank {one.num_examples}: {count} come twice{which}.",
                    evidence={"examples": total, "reference_examples": one.num_examples,
                              "repeated": [str(i) for i in list(extra)[:8]], "sampler": loader.sampler,
                              "where": loader.where},
                    fix=_fix(evaluation, repeated=True) + _at(loader),
                )  # fmt: skip
                return
            if total < one.num_examples:
                yield Finding(
                    cause=names[1],
                    message=f"{_purpose(evaluation)} {pass_number} on {evidence.world_size} ranks has "
                    f"{total} examples and on one rank {one.num_examples}: {one.num_examples - total} are "
                    "left out.",
                    evidence={"examples": total, "reference_examples": one.num_examples,
                              "missing": [str(i) for i in list(missing)[:8]], "drop_last": loader.drop_last,
                              "where": loader.where},
                    fix=_fix(evaluation, repeated=False) + _at(loader),
                )  # fmt: skip
                return
        if not evaluation and not ours:
            yield from _will_pad(evidence, loader)


def _will_pad(evidence: Evidence, loader: Loader) -> Iterator[Finding]:
    """What a DistributedSampler says it will do at the end of a pass that was not reached."""
    total = loader.sampler_settings.get("total_size")
    if loader.num_examples is None or total is None or not _is_number(total):
        return
    extra = int(float(total)) - loader.num_examples
    if extra:
        yield Finding(
            cause="examples-repeated" if extra > 0 else "examples-dropped",
            message=f"{loader.sampler} makes {total} examples of the {loader.num_examples} in the data set "
            f"on {evidence.world_size} ranks: {abs(extra)} {'come twice' if extra > 0 else 'are left out'} "
            "in each pass.",
            evidence={"total_size": int(float(total)), "num_examples": loader.num_examples,
                      "where": loader.where},
            fix=_fix(False, repeated=extra > 0) + _at(loader),
        )  # fmt: skip


def _purpose(evaluation: bool) -> str:
    return "Evaluation pass" if evaluation else "Pass"


def _fix(evaluation: bool, *, repeated: bool) -> str:
    if evaluation:
        return "evaluate each example once: share out without padding, and weigh by true counts"
    if repeated:
        return "share examples out without padding, and weigh each rank by its true number of examples"
    return "keep the last batch on any number of ranks (drop_last=False) and weigh it by its true size"


def _counted(
    candidate: Trace, reference: Trace, loader: int, pass_number: int
) -> tuple[Counter[int], Counter[int]]:
    theirs, ours = (_indices_of(trace, loader, pass_number) for trace in (candidate, reference))
    return +Counter({i: n - ours[i] for i, n in theirs.items() if n > max(1, ours[i])}), ours - theirs


def _indices_of(trace: Trace, loader: int, pass_number: int) -> Counter[int]:
    return Counter(
        index
        for rank in trace.ranks.values()
        for batch in rank.batches
        if (batch.loader, batch.number) == (loader, pass_number)
        for index in batch.indices or ()
    )


def _pass_ends(trace: RankTrace, loader: int) -> dict[int, PassEnd]:
    """Passes that came to their end; some programs count batches and never ask for one more."""
    planned = {p.number: p.num_planned for p in trace.passes if p.loader == loader}
    return {
        p.number: p
        for p in trace.pass_ends
        if p.loader == loader and (p.is_exhausted or p.num_batches == planned.get(p.number))
    }


def _training_loaders(trace: RankTrace) -> list[tuple[int, Loader]]:
    return [(n, trace.loaders[n]) for n in sorted(trace.training_loaders) if n in trace.loaders]


def _overlap(trace: Trace) -> tuple[int, tuple[int, int], int, object] | None:
    """A step in which a rank's examples are all another's: the step, the two, how many, and one of them.

    Most steps must be like it: draws with replacement have the same examples now and then.
    """
    found, num_known = [], 0
    for number in range(1, trace.num_full + 1):
        parts = trace.examples_by_rank(number)
        if parts is None:
            continue
        num_known += 1
        (rank, part), *others = parts.items()
        for other, theirs in others:
            shared = part & theirs
            is_whole = shared.total() >= min(part.total(), theirs.total())
            if shared and is_whole:
                found.append((number, (rank, other), shared.total(), next(iter(shared))))
                break
    return found[0] if found and 2 * len(found) > num_known else None


def _whole_passes(candidate: Trace, reference: Trace) -> int | None:
    """How many examples each rank has in a pass, if that is as many as one rank alone has."""
    for number, loader in _training_loaders(candidate.first):
        ours = _pass_ends(reference.first, number)
        theirs = [_pass_ends(trace, number) for trace in candidate.ranks.values()]
        for pass_number, one in ours.items():
            parts = [each.get(pass_number) for each in theirs]
            if _comes_once(candidate, number, pass_number):
                continue
            if one.num_examples and all(p and p.multiset == one.multiset for p in parts):
                return one.num_examples
        if not ours and loader.batch_size and number in reference.first.loaders:
            plans = [
                {p.num_planned for p in trace.passes if p.loader == number}
                for trace in (reference.first, *candidate.ranks.values())
            ]
            sizes = {loader.batch_size, reference.first.loaders[number].batch_size}
            if plans[0] and None not in plans[0] and len(sizes) == 1 and all(p == plans[0] for p in plans):
                return loader.num_examples
    return None


def _comes_once(trace: Trace, loader: int, pass_number: int, total: int | None = None) -> bool:
    """Whether no example was trained on twice in a pass, by whatever rank, and `total` in all."""
    found: Counter[object] = Counter()
    for number in range(1, trace.num_full + 1):
        batches = [(b.loader, b.number) for step in trace.step(number).values() for b in step.batches]
        if (loader, pass_number) in batches:
            found.update(trace.examples(number) or ())
    return bool(found) and found.most_common(1)[0][1] == 1 and total in (None, found.total())


def _named(settings: dict[str, str], names: tuple[str, ...]) -> list[str]:
    return [key for key in settings if key.strip("_").lower() in names]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _listed(numbers: list[int | None]) -> str:
    texts = [str(number) for number in numbers]
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else texts[0]


def _at(loader: Loader | None) -> str:
    return f" ({loader.where})" if loader is not None and loader.where else ""
