"""Rows of the timing probe, one change away from plain ones."""

import numpy as np

from samestep.observed import Layer, Loader, Machine, Model, Timing, Wrap

TENSORS = ("fc.weight float32 (1000, 250) gradient", "fc.bias float32 (1000,) gradient", "mean float32 (9,)")


def machine(**changes):
    plain = {
        "torch": "2", "num_threads": 2, "device": "cpu", "is_deterministic": False,
        "matmul_precision": "highest",
    }  # fmt: skip
    return Machine(**plain | changes)


def loader(**changes):
    plain = {
        "loader": 0, "dataset": "D", "num_examples": 1000, "is_iterable": False, "sampler": "S",
        "sampler_settings": {}, "batch_sampler": None, "batch_size": 8, "drop_last": False, "num_workers": 2,
        "is_in_order": True, "has_generator": False, "has_worker_init": False, "where": "train.py:10",
        "num_drawn": 500,
    }  # fmt: skip
    return Loader(**plain | changes)


def model(**changes):
    plain = {
        "step": 1, "model": 0, "kind": "Net", "dropouts": (), "tensors": TENSORS,
        "wraps": (Wrap(kind="DistributedDataParallel", settings={}),),
        "norms": (Layer(name="a", kind="SyncBatchNorm"), Layer(name="b", kind="LayerNorm"),
                  Layer(name="c", kind="_SynchronisedSyncBatchNorm")),
    }  # fmt: skip
    return Model(**plain | changes)


def blocks(times, length=5, phases_s=lambda first: {}, num_examples=8, **changes):
    """Timing rows of steps 1, 2, … that took so long, with so many examples a step.

    A change may be a function of a row's first step.
    """
    found = []
    for start in range(0, len(times), length):
        part = np.asarray(times[start : start + length], dtype=float)
        plain = {
            "first_step": start + 1, "num_steps": len(part), "seconds": float(part.sum()),
            "num_examples": None if num_examples is None else num_examples * len(part),
            "step_s": tuple(part.tolist()), "phases_s": phases_s(start + 1), "cpu_s": float(part.sum()),
            "rss_bytes": 1000 + start, "device_bytes": 0,
        }  # fmt: skip
        changed = {name: each(start + 1) if callable(each) else each for name, each in changes.items()}
        found.append(Timing(**plain | changed))
    return found
