"""Estimate: the step at places that were not measured, with its interval; each who knows something moves it.

In logarithms of seconds, since what is known are factors. Knows nothing of why it is moved.
"""

from dataclasses import dataclass

import numpy as np

from samestep.advise.places import Floats


@dataclass(frozen=True)
class Estimate:
    """Logarithms of seconds, one a place: `low` ≤ `log_s` ≤ `high`."""

    log_s: Floats
    low: Floats
    high: Floats

    def moved(self, by: Floats, *, least: Floats) -> "Estimate":
        """Another answer, but none below `least`; the interval holds the old one, and it moved along."""
        log_s = np.maximum(self.log_s + by, least)
        by = log_s - self.log_s
        return Estimate(log_s, self.low + np.minimum(by, 0.0), self.high + np.maximum(by, 0.0))

    def blurred(self, deviation: float) -> "Estimate":
        """As sure as cells can make it that have such an interval themselves."""
        below, above = np.hypot(self.log_s - self.low, deviation), np.hypot(self.high - self.log_s, deviation)
        return Estimate(self.log_s, self.log_s - below, self.log_s + above)

    def raised(self, least: Floats, most: Floats) -> "Estimate":
        """At least `least`; where it is below `most`, the high end reaches that. The low end stays."""
        is_near = self.log_s < most
        high = np.where(is_near, np.maximum(self.high, most), self.high)
        return Estimate(np.maximum(self.log_s, least), self.low, high)
