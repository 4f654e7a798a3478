"""The Accelerate scripts that verify is tried on: (name, accepted causes, note).

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
        "schedule_per_rank",
        ("schedule-stepped-per-rank",),
        "a prepared scheduler steps once for each process; cured by step_scheduler_with_optimizer=False",
    ),
    Entry(
        "even_batches",
        ("examples-repeated",),
        "the last batch of 20 is filled up to 24 on more than one process",
    ),
    Entry(
        "uneven_batches",
        ("unequal-batches-averaged",),
        "the last batch of 20 is split 12 + 8, which weigh the same; only each fourth step is wrong",
    ),
    Entry(
        "augmentation",
        ("same-randomness-on-every-rank",),
        "set_seed(7) on every process; the twin's draws and order depend on the world, too",
    ),
    Entry(
        "batch_per_process",
        ("batch-grows-with-world",),
        "the loader's batch size is that of one process; cured by split_batches=True",
    ),
    Entry(
        "tokens_per_rank",
        ("tokens-averaged-per-rank",),
        "also per micro-batch, on one process as well; the twin counts the tokens of the whole update",
    ),
    Entry(
        "evaluation_padded",
        ("evaluation-padded",),
        "gather keeps the padding of the last validation batch; the weights are equal, the metrics are not",
    ),
    Entry(
        "own_metric",
        ("metric-of-one-rank",),
        "the main process prints the error of its own shard; the weights are equal",
    ),
    Entry(
        "batch_norm",
        ("norm-not-synchronised",),
        "BatchNorm2d; also has a prepared scheduler that is right, as split_batches=True",
    ),
    Entry(
        "mean_of_means",
        ("metric-averaged-without-counts",),
        "validation shards of 24 and 19; the weights are equal",
    ),
    Entry(
        "clip_while_accumulating",
        ("clipped-before-exchange", "clipped-per-rank"),
        "clips at each micro-step, also those under no_sync",
    ),
]
