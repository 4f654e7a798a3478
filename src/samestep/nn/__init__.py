"""Layers that see the global batch: synchronised normalisation, its protocol, and dropout by example."""

from samestep.nn.convert import register_norm, synchronise
from samestep.nn.dropout import convert_dropout
from samestep.nn.moments import moments, sum_over_ranks

__all__ = ["convert_dropout", "moments", "register_norm", "sum_over_ranks", "synchronise"]
