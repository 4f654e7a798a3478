"""How runs went as wholes: whether there was a world at all, whether it came to an end, and what is left."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.verify.evidence import Evidence


def world_ignored(evidence: Evidence) -> Iterator[Finding]:
    """N copies of the program, none of which knows of the others."""
    trace = evidence.candidate
    steps = [of_rank.num_steps for of_rank in trace.ranks.values()]
    if trace.world_size < 2 or not all(steps) or any(r.group is not None for r in trace.ranks.values()):
        return
    yield Finding(
        cause="world-ignored",
        message=f"None of the {trace.world_size} processes made a process group: each trains a model of its "
        "own.",
        evidence={"steps": steps},
        fix="call torch.distributed.init_process_group and wrap the model in DistributedDataParallel, or "
        "train with samestep train",
    )


def gradients_not_exchanged(evidence: Evidence) -> Iterator[Finding]:
    """Gradients that are applied as each rank computed them."""
    trace = evidence.candidate
    if trace.world_size < 2 or evidence.has("world-ignored") or trace.exchanges_weights:
        return
    for number in range(1, trace.num_full + 1):
        steps = trace.step(number)
        names = steps[min(steps)].applied
        own, differ, shared = [], [], []
        for name in names:
            rows = [(step.local.get(name), step.applied.get(name)) for step in steps.values()]
            if any(a is None or b is None or a.summary is None or b.summary is None for a, b in rows):
                continue
            prints = [(a.summary.print, b.summary.print) for a, b in rows]  # type: ignore[union-attr]
            if len({after for _, after in prints}) == 1:
                shared.append(name)
                continue
            differ.append(name)
            if all(before == after for before, after in prints):
                own.append(name)
        if own and own == differ:
            some = f"{own[0]} and {len(own) - 1} others" if len(own) > 1 else own[0]
            yield Finding(
                cause="gradients-not-exchanged",
                message=f"In step {number} each rank applies its own gradient of {some}: nothing is exchanged"
                + (" for these, though it is for others." if shared else "."),
                evidence={"step": number, "parameters": own[:8], "exchanged": shared[:8]},
                fix="call the wrapped model, not model.module, and let its last backward pass of a step "
                "exchange (no_sync only for those before); by hand, all_reduce every gradient",
            )
            return


def crashed(evidence: Evidence) -> Iterator[Finding]:
    """A program that runs on one rank and not on N."""
    run = evidence.candidate_run
    if run.status not in ("failed", "stalled") or evidence.has("uneven-steps"):
        return
    if run.status == "stalled" and evidence.pair is not None:
        return  # it had done all its steps, and hung when its processes were to end
    sentence = run.failure.sentence if run.failure is not None else "it ended"
    taken = {str(rank): trace.num_steps for rank, trace in evidence.candidate.ranks.items()}
    yield Finding(
        cause="crashed-in-one-world",
        message=f"The program runs on one rank and not on {run.world_size}: {sentence}",
        evidence={"steps": taken, "where": run.failure.where if run.failure is not None else ""},
        fix="see what the rank said; it is the program's own error, the ranks were started and found each "
        "other"
        if any(trace.group is not None for trace in evidence.candidate.ranks.values())
        else "see what the rank said",
    )


def unexplained(evidence: Evidence) -> Iterator[Finding]:
    """A difference for which no rule has a cause."""
    pair = evidence.pair
    if evidence.found or pair is None or evidence.candidate.exchanges_weights:
        return
    first = pair.comparison.first
    if first is None or first.quantity in ("inputs", "examples"):
        return
    yield Finding(
        cause="unexplained-difference",
        message=f"Step {first.step}: {first.quantity} {first.name} is off by {first.size:.2g}, and rounding "
        f"explains {first.tolerance:.2g}. No known cause fits.",
        evidence={"step": first.step, "quantity": first.quantity, "name": first.name,
                  "reference": first.reference, "candidate": first.candidate},
        fix="look at what happens at this place and is not the same on every number of ranks",
    )  # fmt: skip
