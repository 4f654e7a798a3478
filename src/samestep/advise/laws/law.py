"""Law: what all laws of the step's time have in common."""

from collections.abc import Callable
from typing import Protocol

from samestep.advise.places import Floats, Places

Curve = Callable[[Places], Floats]
"""A fitted law: places → seconds a step, all positive."""


class Law(Protocol):
    """A form of the step's time with numbers to fit.

    `fit` minimises relative errors, takes times that are positive in order of GPUs, and never fails on them;
    with fewer cells than numbers, the numbers that it does not need stay 0.
    """

    @property
    def name(self) -> str: ...

    def fit(self, places: Places, step_s: Floats) -> Curve: ...
