"""The transformers.Trainer scripts that verify is tried on: (name, accepted causes, note).

Each has a twin, `NAME_right.py`, that trains the same on any number of ranks up to rounding.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """A script, the causes of which verify may name any, and what is special about it."""

    name: str
    causes: tuple[str, ...]
    note: str


ENTRIES = [
    Entry(
        "batch_per_device",
        ("batch-grows-with-world",),
        "per_device_train_batch_size is that of one process; the schedule shortens with the updates",
    ),
    Entry(
        "tokens_per_rank",
        ("tokens-averaged-per-rank",),
        "average_tokens_across_devices=False; in the twin AdamW amplifies rounding in the key bias, "
        "whose true gradient is zero",
    ),
]
