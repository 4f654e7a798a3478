"""Laws without a form: the work that a GPU does in a second stays what it was in one of the cells."""

from dataclasses import dataclass

from samestep.advise.laws.law import Curve
from samestep.advise.places import Floats, Places


@dataclass(frozen=True)
class RatioLaw:
    """Seconds per example and GPU stay those of one cell: `T = m · T(cell) / m(cell)`, m examples a GPU."""

    name: str
    index: int
    """Of the cell, in order of GPUs."""

    def fit(self, places: Places, step_s: Floats) -> Curve:
        rate = float(step_s[self.index] / places.batch_per_gpu[self.index])
        return lambda at: rate * at.batch_per_gpu


LINEAR_SPEEDUP = RatioLaw("linear speedup", 0)
LAST_EFFICIENCY = RatioLaw("last efficiency", -1)
