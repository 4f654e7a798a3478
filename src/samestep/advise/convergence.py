"""Convergence: what it costs in examples if the batch grows with the GPUs, and whether the data are enough.

From the gradient noise scale (`noise`): a batch of B needs (noise + B) / (noise + B₀) times the examples that
B₀ needs to the same loss. Without a noise scale nothing is claimed: the same examples are counted, which is
the best case, and that is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from samestep.advise.context import NoiseScale
from samestep.advise.noise import examples_factor
from samestep.advise.words import gpus as told_gpus
from samestep.findings import Finding

FEWEST_STEPS = 20
"""An epoch of fewer is hardly one: a schedule by epochs has no steps to work on."""


@dataclass(frozen=True, kw_only=True)
class ExamplesNeeded:
    """What a batch needs, as a factor on examples; the interval is that of the noise scale."""

    batch_size: float
    factor: float
    low: float
    high: float | None
    """None where no noise scale is known."""
    is_known: bool


def examples_needed(batch_size: float, than: float, noise: NoiseScale | None) -> ExamplesNeeded:
    """The examples that one batch needs, against another; most where the noise scale is small."""
    if batch_size == than:
        return ExamplesNeeded(batch_size=batch_size, factor=1.0, low=1.0, high=1.0, is_known=True)
    if noise is None or noise.value is None:
        return ExamplesNeeded(batch_size=batch_size, factor=1.0, low=1.0, high=None, is_known=False)
    factor = examples_factor(batch_size, noise.value, than=than)
    ends = sorted(
        examples_factor(batch_size, end, than=than) if end is not None else fallback
        for end, fallback in ((noise.high, 1.0), (noise.low, batch_size / than))
    )
    return ExamplesNeeded(batch_size=batch_size, factor=factor, low=ends[0], high=ends[1], is_known=True)


def data_in_words(gpus: int, batch_size: float, examples_per_epoch: float) -> str:
    """Steps of an epoch, and examples of each GPU in it."""
    steps, each = examples_per_epoch / batch_size, examples_per_epoch / gpus
    return (
        f"On {told_gpus(gpus)} with a batch of {batch_size:,.0f}, an epoch is {_count(steps, 'step')} and "
        f"{_count(each, 'example')} a GPU"
    )


def too_small(batches: Mapping[int, float], examples_per_epoch: float | None) -> Finding | None:
    """Said where the batch grows so large that an epoch of the data has next to no steps."""
    if examples_per_epoch is None:
        return None
    short = [n for n in sorted(batches) if examples_per_epoch / batches[n] < FEWEST_STEPS]
    if not short:
        return None
    first, batch = short[0], batches[short[0]]
    return Finding(
        cause="data-set-too-small",
        message=f"{data_in_words(first, batch, examples_per_epoch)}: the data set is too small to grow the "
        "batch with the GPUs that far.",
        evidence={
            "gpus": first,
            "batch_size": batch,
            "steps_per_epoch": examples_per_epoch / batch,
            "examples_per_gpu_per_epoch": examples_per_epoch / first,
        },
        fix="keep the batch and use fewer GPUs, or count the run in steps and not in epochs",
    )


def _count(value: float, noun: str) -> str:
    shown = f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")
    return f"{shown} {noun}{'s' * (shown != '1')}"
