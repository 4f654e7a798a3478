"""The Lightning scripts that verify is tried on: (name, accepted causes, note).

Each has a twin, `NAME_right.py`, that trains the same on any number of ranks up to rounding. Lightning would
start processes of its own if LOCAL_RANK were not set; with TORCHELASTIC_RUN_ID it heeds torchrun's RANK, too.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """A script, the causes of which verify may name any, and what is special about it."""

    name: str
    causes: tuple[str, ...]
    note: str


ENTRIES = [
    Entry(
        "batch_per_rank",
        ("batch-grows-with-world",),
        "the loader's batch size is that of one device",
    ),
    Entry(
        "batch_norm",
        ("norm-not-synchronised",),
        "BatchNorm1d with sync_batchnorm left off",
    ),
    Entry(
        "logged_here",
        ("metric-of-one-rank",),
        "self.log without sync_dist, printed by rank 0; the weights are equal",
    ),
    Entry(
        "evaluation_padded",
        ("evaluation-padded",),
        "Lightning's validation sampler repeats examples, 49 do not divide; the weights are equal",
    ),
    Entry(
        "rate_by_world",
        ("rate-depends-on-world",),
        "the rate grows with the devices, the batch does not; with dropout, seeded by rank",
    ),
    Entry(
        "summed_loss",
        ("summed-loss-averaged",),
        "reduction='sum' under DDP's average",
    ),
    Entry(
        "average_on_zero",
        ("average-updated-on-one-rank",),
        "other ranks validate with the first weights; the trained weights are equal",
    ),
    Entry(
        "no_sampler",
        ("same-examples-on-every-rank",),
        "use_distributed_sampler=False and one seed: N times the steps on the same examples",
    ),
]
