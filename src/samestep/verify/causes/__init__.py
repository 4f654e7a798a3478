"""Causes: one rule for each thing that makes N ranks train otherwise than one; in the order they are asked.

A rule is a function of the evidence that yields findings. It may look at what rules before it found: what is
a consequence of an earlier cause is not told twice.
"""

from samestep.findings import Finding
from samestep.verify.causes import data, ends, exchange, metrics, norms, randomness, recipe, replicas
from samestep.verify.evidence import Evidence, Rule

RULES: tuple[Rule, ...] = (
    ends.world_ignored,
    ends.gradients_not_exchanged,
    replicas.parameter_order_differs,
    replicas.frozen_on_one_rank,
    replicas.precision_differs,
    replicas.start_different,
    replicas.unused_on_one_rank,
    replicas.skipped_update,
    data.sampler_knows_no_world,
    data.same_examples,
    data.uneven_steps,
    data.epoch_not_set,
    data.repeated_or_dropped,
    recipe.batch_grows,
    recipe.schedule_per_rank,
    recipe.rate_depends_on_world,
    randomness.equal_workers,
    randomness.same_randomness,
    norms.not_synchronised,
    norms.overwritten,
    exchange.clipped_before_exchange,
    exchange.clipped_per_rank,
    exchange.loss_reduction,
    exchange.unequal_weights,
    exchange.penalty_per_rank,
    replicas.drift,
    replicas.average_on_one_rank,
    metrics.evaluation,
    ends.crashed,
    ends.unexplained,
)


CAUSES = (
    "world-ignored", "gradients-not-exchanged", "parameter-order-differs", "replicas-start-different",
    "weights-changed-after-wrap", "replicas-drift", "frozen-on-one-rank", "unused-on-one-rank",
    "precision-differs", "sampler-knows-no-world", "same-examples-on-every-rank", "uneven-steps",
    "epoch-not-set", "examples-repeated", "examples-dropped", "batch-grows-with-world",
    "rate-depends-on-world", "schedule-stepped-per-rank", "workers-with-equal-seeds",
    "same-randomness-on-every-rank", "norm-not-synchronised", "sync-norm-is-local", "metric-overwritten",
    "clipped-before-exchange", "clipped-per-rank", "summed-loss-averaged", "averaged-loss-summed",
    "unequal-batches-averaged", "tokens-averaged-per-rank", "penalty-counted-per-rank",
    "average-updated-on-one-rank", "evaluation-padded", "metric-of-one-rank", "metric-updated-on-one-rank",
    "metric-averaged-without-counts", "metric-merged-wrongly", "crashed-in-one-world",
    "unexplained-difference",
)  # fmt: skip
"""Every cause that a rule may name."""


def judged(evidence: Evidence) -> list[Finding]:
    """All findings on a candidate, each cause once."""
    for rule in RULES:
        for finding in rule(evidence):
            assert finding.cause in CAUSES
            if not evidence.has(finding.cause):
                evidence.found.append(finding)
    return evidence.found
