"""Learnt: what public tables of other jobs taught. `learning` makes it, `competition` applies it."""

from dataclasses import dataclass

from samestep.advise.experience import Experience
from samestep.advise.growth import Growth


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """Two forecasters with numbers that no job's own cells are enough for."""

    experience: Experience
    growth: Growth
