"""How findings of a run under way name ranks and lists of things."""

from collections.abc import Sequence

from samestep.launch.voices import tag_of


def ranks_text(ranks: Sequence[int]) -> str:
    """rank 2; ranks 0-3, 6."""
    return tag_of(ranks)[1:-1]


def some(names: Sequence[object], most: int = 3) -> str:
    """The first few of many names, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
