"""Words: times, parts and amounts as sentences have them. Knows nothing of what is said."""

import math

_UNITS = (("days", 86400.0, 3 * 86400.0), ("h", 3600.0, 3600.0), ("min", 60.0, 90.0), ("s", 1.0, 1.0))
_SMALL = (("ms", 1e-3, 1e-3), ("µs", 1e-6, 0.0))


def told(seconds: float) -> str:
    """A time in a unit of its own, with two or three digits: 3.1 h, 45 min, 12.5 ms."""
    name, unit_s = _unit(seconds)
    return f"{_number(seconds / unit_s)} {name}"


def told_between(seconds: float, low_s: float, high_s: float) -> str:
    """A time with its interval, in one unit: 3.1 h (2.9–3.4)."""
    name, unit_s = _unit(seconds)
    low, high = _number(low_s / unit_s), _number(high_s / unit_s)
    return f"{_number(seconds / unit_s)} {name}" + (f" ({low}–{high})" if low != high else "")


def amount(value: float) -> str:
    """Money, or GPU-hours."""
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 9.95 else f"{value:.2g}"


def gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def examples(count: float) -> str:
    """Of one GPU; a share need not be whole."""
    return f"{count:.6g} example{'s' * (count != 1)}"


def percent(part: float) -> str:
    """A part, with a digit more where it is small."""
    return f"{100 * part:.0f} %" if abs(part) >= 0.0095 or part == 0 else f"{100 * part:.1g} %"


def percent_between(part: float, low: float, high: float) -> str:
    """A part with its interval: 65 % (46–69)."""
    ends = [percent(end).removesuffix(" %") for end in (low, high)]
    return percent(part) + (f" ({'–'.join(ends)})" if ends[0] != ends[1] else "")


def amount_between(value: float, low: float, high: float) -> str:
    """Money, or GPU-hours, with its interval."""
    ends = [amount(low), amount(high)]
    return amount(value) + (f" ({'–'.join(ends)})" if ends[0] != ends[1] else "")


def _unit(seconds: float) -> tuple[str, float]:
    size = abs(seconds)
    if size == 0 or not math.isfinite(size):
        return "s", 1.0
    return next((name, unit_s) for name, unit_s, least in (*_UNITS, *_SMALL) if size >= least)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "unknown"
    if abs(value) >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 0.95 else f"{value:.2g}"
