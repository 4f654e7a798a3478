"""The recipe: batch size, learning rate and schedule, which must not depend on the number of ranks."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.verify.evidence import Evidence

_SEEN_ELSEWHERE = {"lr", "initial_lr", "max_lr", "min_lr", "weight_decay"}


def batch_grows(evidence: Evidence) -> Iterator[Finding]:
    """A batch size that is meant for a rank, so that the global batch is N times as large."""
    if evidence.has("world-ignored", "same-examples-on-every-rank", "sampler-knows-no-world"):
        return
    candidate, reference = evidence.candidate, evidence.reference
    counts = [
        (number, reference.num_examples(number), candidate.num_examples(number))
        for number in range(1, min(candidate.num_full, reference.num_full) + 1)
    ]
    known = [(number, one, many) for number, one, many in counts if one and many]
    if not known:
        return
    number, one, many = known[0]
    if many - one < evidence.world_size and evidence.has("examples-repeated"):
        return
    grown = [many > one for _, one, many in known]
    if not grown[0] or sum(grown) * 2 < len(grown):
        return
    loader = next((candidate.first.loaders.get(n) for n in sorted(candidate.first.training_loaders)), None)
    where = f" ({loader.where})" if loader is not None and loader.where else ""
    yield Finding(
        cause="batch-grows-with-world",
        message=f"Step {number} trains on {many} examples on {evidence.world_size} ranks and on {one} on "
        f"one: an epoch has {many / one:g} times fewer updates, which is other training.",
        evidence={"examples": many, "reference_examples": one, "step": number,
                  "where": loader.where if loader is not None else ""},
        fix=f"divide the batch size by the number of ranks{where}",
    )  # fmt: skip


def schedule_per_rank(evidence: Evidence) -> Iterator[Finding]:
    """A schedule that moves N times a step."""
    candidate, reference = evidence.candidate, evidence.reference
    for number in range(1, min(candidate.num_full, reference.num_full) + 1):
        one = reference.first.steps[number].row
        for rank, step in candidate.step(number).items():
            row = step.row
            if one is None or row is None or row.num_scheduler_steps <= max(1, one.num_scheduler_steps):
                continue
            if not one.num_scheduler_steps and evidence.has("batch-grows-with-world"):
                continue  # an epoch ends at another step
            if row.num_scheduler_steps % evidence.world_size == 0 or row.lr != one.lr:
                yield Finding(
                    cause="schedule-stepped-per-rank",
                    message=f"Before step {number} the schedule was stepped {row.num_scheduler_steps} times "
                    f"on {evidence.world_size} ranks and {one.num_scheduler_steps} times on one: the "
                    "learning rate runs ahead.",
                    evidence={"step": number, "rank": rank, "scheduler_steps": row.num_scheduler_steps,
                              "reference_scheduler_steps": one.num_scheduler_steps, "lr": list(row.lr),
                              "reference_lr": list(one.lr)},
                    fix="step the schedule once an optimizer step on any number of ranks "
                    "(Accelerate: split_batches=True, or keep the scheduler out of prepare)",
                )  # fmt: skip
                return


def rate_depends_on_world(evidence: Evidence) -> Iterator[Finding]:
    """A learning rate, weight decay or another setting of an optimizer that is another on N ranks."""
    if evidence.has("schedule-stepped-per-rank", "world-ignored"):
        return
    candidate, reference = evidence.candidate, evidence.reference
    if (other := _other_setting(evidence)) is not None:
        yield other
        return
    for number in range(1, min(candidate.num_full, reference.num_full) + 1):
        one = reference.first.steps[number].row
        rows = {rank: step.row for rank, step in candidate.step(number).items()}
        for rank, row in rows.items():
            if one is None or row is None:
                continue
            for what, a, b in (
                ("learning rate", one.lr, row.lr),
                ("weight decay", one.weight_decay, row.weight_decay),
            ):
                pair = next(((x, y) for x, y in zip(a, b, strict=False) if x != y), None)
                # with another number of steps in an epoch, a schedule that follows from it is no cause
                if pair is None or (number > 1 and evidence.has("batch-grows-with-world")):
                    continue
                x, y = pair
                times = f", {y / x:g} times as much" if x else ""
                yield Finding(
                    cause="rate-depends-on-world",
                    message=f"In step {number} the {what} is {y:g} on {evidence.world_size} ranks and {x:g} "
                    f"on one{times}.",
                    evidence={"step": number, "rank": rank, "candidate": y, "reference": x, "what": what},
                    fix=f"keep the {what} the same on any number of ranks while the global batch is the same",
                )
                return


def _other_setting(evidence: Evidence) -> Finding | None:
    """A setting of an optimizer, such as its momentum, that is another on N ranks."""
    candidate, reference = evidence.candidate, evidence.reference
    for number, one in reference.first.optimizers.items():
        other = candidate.first.optimizers.get(number)
        for ours, theirs in zip(one.groups, other.groups if other else (), strict=False):
            for what in sorted(ours.settings.keys() & theirs.settings.keys() - _SEEN_ELSEWHERE):
                x, y = ours.settings[what], theirs.settings[what]
                if x != y:
                    return Finding(
                        cause="rate-depends-on-world",
                        message=f"{one.kind} has {what}={y} on {evidence.world_size} ranks, {x} on one.",
                        evidence={"what": what, "candidate": y, "reference": x, "where": one.where},
                        fix=f"keep {what} the same on any number of ranks",
                    )
    return None
