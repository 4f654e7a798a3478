"""Figures: measured values in one unit, with their intervals. Knows no HTML and draws nothing."""

import math
from dataclasses import dataclass

from samestep.report.wording import number

_UNITS = (
    ("h", 3600.0, 3 * 3600.0),
    ("min", 60.0, 3 * 60.0),
    ("s", 1.0, 1.0),
    ("ms", 1e-3, 1e-3),
    ("µs", 1e-6, 0.0),
)
"""Name, seconds, and from how many seconds on it is used."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit of time in which some values are told, all with the same digits."""

    name: str
    seconds: float
    decimals: int

    @classmethod
    def of(cls, seconds: float, digits: int = 3) -> "Unit":
        """One in which this time has so many digits."""
        size = float(f"{abs(seconds):.{digits}g}")  # 999.97 ms is 1.00 s
        name, unit_s, _ = next(unit for unit in _UNITS if size >= unit[2])
        magnitude = math.floor(math.log10(size / unit_s)) if size else 0
        return cls(name=name, seconds=unit_s, decimals=min(digits, max(0, digits - 1 - magnitude)))

    def number(self, seconds: float) -> str:
        text = f"{seconds / self.seconds:,.{self.decimals}f}".replace("-", "−")
        return text if text.strip("−0.") else text.removeprefix("−")

    def told(self, seconds: float) -> str:
        return f"{self.number(seconds)} {self.name}"

    def signed(self, seconds: float) -> str:
        """A difference; one that has only zeros has no sign."""
        text = self.number(seconds)
        return f"{'+' if text[0] != '−' and text.strip('0.') else ''}{text} {self.name}"

    def range(self, low: float, high: float) -> str:
        """An interval without its unit."""
        between = " to " if low < 0 else "–"
        return f"{self.number(low)}{between}{self.number(high)}"


def seconds(value: float) -> str:
    """A time with three digits, in a unit of its own."""
    return Unit.of(value).told(value)


def times(value: float) -> str:
    """A speedup, as a number."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def percent(part: float) -> str:
    return f"{part:.0%}"


def short(value: float) -> str:
    """A number for a tick: "120k"."""
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * size or (abs(value) >= size and size > 1e3):
            return f"{value / size:.4g}{letter}"
    return number(value)


def gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
