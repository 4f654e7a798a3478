"""Length: how long the run is that somebody wants to make, in one of the ways in which people know it."""

from dataclasses import dataclass

from samestep.advise.context import Context
from samestep.advise.offers import Run
from samestep.advise.rows import Row
from samestep.errors import ConfigError

DEFAULT_STEPS = 10_000
DEFAULT_EXAMPLES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long the run is, in one of three ways; none of them: an epoch, or the steps or examples above."""

    num_steps: float | None = None
    """Of the batch that the fewest GPUs have."""
    num_epochs: float | None = None
    alone_s: float | None = None
    """Training on the fewest GPUs that are known, without waits and start."""


def run_of(length: Length, row: Row, context: Context) -> tuple[Run, list[str]]:
    """The run, and what had to be assumed of it; `row` is that of the fewest GPUs."""
    per_epoch = context.examples_per_epoch
    if length.num_epochs is not None:
        if per_epoch is None:
            raise ConfigError(
                f"--epochs {length.num_epochs:g} was given, but how long an epoch is was not measured; "
                "give the run's length with --steps, or its time with --alone."
            )
        return Run(num_examples=length.num_epochs * per_epoch, num_epochs=length.num_epochs), []
    if length.alone_s is not None:
        examples = length.alone_s / row.step_s * row.gpus * row.batch_per_gpu
        return Run(num_examples=examples), []
    if length.num_steps is not None:
        if not row.is_in_seconds:
            raise ConfigError(
                f"--steps {length.num_steps:g} was given, but how many examples a step has is not known: add "
                "batch_per_gpu or batch_size to the table, or give the run's time with --alone."
            )
        examples = length.num_steps * row.gpus * row.batch_per_gpu
        return Run(num_examples=examples, num_epochs=examples / per_epoch if per_epoch else 0.0), []
    if per_epoch is not None:
        told_run = "Times are those of one epoch: say how long the run is with --epochs, --steps or --alone."
        return Run(num_examples=per_epoch, num_epochs=1.0, name="one epoch"), [told_run]
    if not row.is_in_seconds:
        return Run(num_examples=DEFAULT_EXAMPLES, name=f"{DEFAULT_EXAMPLES:,} examples"), [
            f"Times are those of {DEFAULT_EXAMPLES:,} examples: say how long the run is with --alone. How "
            "many examples a step has is not known, so no time of a step is."
        ]
    batch_size = row.gpus * row.batch_per_gpu
    of_batch = f" of the batch of {batch_size:,.0f}" if row.is_batch_known else ""
    return Run(num_examples=DEFAULT_STEPS * batch_size, name=f"{DEFAULT_STEPS:,} steps"), [
        f"Times are those of {DEFAULT_STEPS:,} steps{of_batch}: say how long the run is with --steps or "
        "--alone."
    ]
