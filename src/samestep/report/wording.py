"""How values are told on a page: numbers, times, evidence. Knows no HTML; nothing here is ever trusted."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 1000
"""Of one text of the user's; a page stays small whatever a program prints."""

# They have no picture of their own, or turn around the text beside them, or have no bytes in UTF-8.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def visible(text: str) -> str:
    """A text with characters that cannot be seen written out, cut to `MOST_CHARACTERS`."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", cut(text, MOST_CHARACTERS))


def cut(text: str, most: int) -> str:
    """The beginning of a text, and how much of it is missing."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def number(value: float) -> str:
    """A number with four digits; whole ones in full."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"


def exact(value: float | str) -> str:
    """A number with all digits that tell it from another of 32 bits; a text as it is."""
    return value if isinstance(value, str) else f"{value:.9g}"


def duration(seconds: float) -> str:
    """A time as people say it."""
    if not math.isfinite(seconds):
        return "unknown"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def counted(count: int, noun: str) -> str:
    """A number of things: "1 rank", "2 ranks"."""
    return f"{number(count)} {noun}{'s' * (count != 1)}"


def joined(parts: Sequence[str]) -> str:
    """Parts of a sentence: "1, 2 and 4"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def ranks(numbers: Iterable[int]) -> str:
    """Which ranks, by number."""
    known = sorted(set(numbers))
    shown = [str(rank) for rank in known[:16]] + ["more"] * (len(known) > 16)
    return f"rank{'s' * (len(known) > 1)} {joined(shown)}" if known else ""


def told(value: Any) -> str:
    """A value of evidence or settings in plain words; what is nested deeper than one level as JSON."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_inner(item)}" for key, item in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(_inner(item) for item in value) or "–"
    return str(value)


def _inner(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return told(value)


def label(name: str) -> str:
    """The name of a field as words."""
    return name.replace("_", " ")
