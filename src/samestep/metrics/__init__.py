"""Metrics that are exact over any number of ranks: torchmetrics' own, merged, and the Fréchet distance."""

from samestep.metrics.by_shard import ByShard
from samestep.metrics.frechet import FrechetDistance
from samestep.metrics.merge import Merged, compute, load_state, state_of

__all__ = ["ByShard", "FrechetDistance", "Merged", "compute", "load_state", "state_of"]
