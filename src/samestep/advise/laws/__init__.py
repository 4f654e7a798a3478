"""Laws: the time of a step against the world, each with few numbers that are fitted within bounds.

A law knows the form; it refuses to know how sure it is. `ALL` has one of each.
"""

from samestep.advise.laws.law import Curve, Law
from samestep.advise.laws.linear import (
    AMDAHL,
    BANDWIDTH,
    ERNEST,
    HIERARCHICAL,
    LOGARITHMIC,
    RING,
    UNIVERSAL,
    LinearLaw,
)
from samestep.advise.laws.pollux import POLLUX, PolluxLaw
from samestep.advise.laws.ratio import LAST_EFFICIENCY, LINEAR_SPEEDUP, RatioLaw

ALL: tuple[Law, ...] = (
    LINEAR_SPEEDUP, LAST_EFFICIENCY, AMDAHL, UNIVERSAL, ERNEST, POLLUX, LOGARITHMIC, BANDWIDTH, RING,
    HIERARCHICAL,
)  # fmt: skip

__all__ = [
    "ALL",
    "AMDAHL",
    "BANDWIDTH",
    "ERNEST",
    "HIERARCHICAL",
    "LAST_EFFICIENCY",
    "LINEAR_SPEEDUP",
    "LOGARITHMIC",
    "POLLUX",
    "RING",
    "UNIVERSAL",
    "Curve",
    "Law",
    "LinearLaw",
    "PolluxLaw",
    "RatioLaw",
]
