"""Rows as a probe writes them, one change away from plain ones, and the folders that they are read from."""

import math
from hashlib import blake2b

import numpy as np

from samestep.observations import (
    FORMAT,
    MOST_BYTES,
    Observations,
    ObservationWriter,
    observations_path,
    sample_positions,
)
from samestep.observed import (
    VERSION,
    Batch,
    Call,
    Clip,
    Collective,
    Criterion,
    End,
    Evaluated,
    Event,
    Gradient,
    Group,
    Layer,
    Loader,
    Loss,
    Machine,
    Model,
    Optimizer,
    OptimizerGroup,
    Pass,
    PassEnd,
    Randomness,
    RandomState,
    Replica,
    Said,
    Spawn,
    Start,
    State,
    Statistic,
    Step,
    Summary,
    Worker,
    Wrap,
)
from samestep.verify.trace import Trace

TENSORS = ("fc.weight float32 (1, 4) gradient", "fc.bias float32 (1,) gradient")
WHERE = {
    "loader": "train.py:10", "evaluation loader": "train.py:11", "loss": "train.py:20", "clip": "train.py:21",
    "optimizer": "train.py:22", "said": "train.py:30", "criterion": "train.py:19",
}  # fmt: skip
DDP = Wrap(kind="DistributedDataParallel", settings={"broadcast_buffers": "True"})
RANDOM = Randomness(python="p", torch="t", numpy="n")

_PLAIN = {
    Start: {
        "format": FORMAT, "version": VERSION, "samestep": "0", "rank": 0, "world_size": 1, "attempt": 0,
        "program": ("train.py",), "steps_in_full": 24, "most_bytes": MOST_BYTES, "python": "3", "host": "",
        "pid": 1, "time": 0.0,
    },
    Machine: {
        "torch": "2", "num_threads": 1, "device": "cpu", "is_deterministic": False,
        "matmul_precision": "highest",
    },
    Group: {"step": 1, "rank": 0, "world_size": 2, "backend": "gloo"},
    Loader: {
        "loader": 0, "dataset": "TensorDataset", "num_examples": 24, "is_iterable": False,
        "sampler": "DistributedSampler", "sampler_settings": {}, "batch_sampler": "BatchSampler",
        "batch_size": 4, "drop_last": False, "num_workers": 0, "is_in_order": True, "has_generator": False,
        "has_worker_init": False, "has_set_epoch": True, "where": WHERE["loader"],
    },
    Pass: {
        "step": 1, "loader": 0, "number": 1, "base_seed": 1, "sampler_settings": {}, "random": RANDOM,
        "num_planned": None,
    },
    PassEnd: {
        "step": 1, "loader": 0, "number": 1, "num_batches": 1, "num_examples": 1, "multiset": 0,
        "is_exhausted": True,
    },
    Batch: {
        "step": 1, "loader": 0, "number": 1, "batch": 1, "indices": (0, 1), "num_examples": 2, "print": "",
        "tensors": (), "examples": (),
    },
    Worker: {"step": 1, "loader": 0, "number": 1, "worker": 0, "random": RANDOM, "moved": ()},
    Model: {
        "step": 1, "model": 0, "kind": "Net", "wraps": (), "norms": (), "dropouts": (), "tensors": TENSORS,
    },
    Call: {
        "step": 1, "model": 0, "name": "", "kind": "Net", "is_training": True, "has_gradients": True,
        "autocast": None, "will_exchange": None, "inputs": (), "outputs": (),
    },
    Statistic: {
        "step": 1, "model": 0, "name": "norm", "kind": "BatchNorm1d", "buffers": ("norm.running_mean",),
        "num_collectives": 0,
    },
    Criterion: {
        "step": 1, "kind": "mse_loss", "reduction": "mean", "num_targets": 4, "num_rows": 4,
        "has_gradients": True, "where": WHERE["criterion"],
    },
    Loss: {
        "step": 1, "number": 1, "value": 1.0, "dtype": "float32", "num_elements": 1, "where": WHERE["loss"],
    },
    Gradient: {
        "step": 1, "optimizer": 0, "name": "fc.weight", "stage": "applied", "num_backward": 1,
        "summary": None,
    },
    State: {"step": 0, "model": 0, "name": "fc.weight", "role": "parameter"},
    Replica: {"step": 1, "model": 0, "print": "p"},
    RandomState: {"step": 1, "random": RANDOM},
    Optimizer: {
        "step": 1, "optimizer": 0, "kind": "SGD", "where": WHERE["optimizer"],
        "groups": (OptimizerGroup(parameters=("fc.weight", "fc.bias"), settings={"lr": "0.1"}),),
    },
    Clip: {"kind": "clip_grad_norm_", "limit": 1.0, "norm": 2.0, "after": 3, "where": WHERE["clip"]},
    Collective: {"name": "all_reduce", "phase": "between", "count": 1, "num_bytes": 4},
    Step: {
        "step": 1, "optimizer": 0, "is_full": True, "lr": (0.1,), "weight_decay": (0.0,), "num_forward": 1,
        "num_backward": 1, "num_scheduler_steps": 0, "scale": None, "num_skipped": 0, "clips": (),
        "collectives": (), "events": (), "phases_s": {},
    },
    Said: {
        "step": 2, "template": "val #", "numbers": (0.5,), "after_evaluation": True, "stream": "stdout",
        "where": WHERE["said"],
    },
    Spawn: {"step": 1, "num_processes": 2},
    End: {"status": "finished", "exit_code": 0, "saw_torch": True},
    Evaluated: {"step": 1, "model": 0, "print": "p"},
    Layer: {"name": "norm", "kind": "BatchNorm1d", "keeps_statistics": True},
}  # fmt: skip


def row(kind, /, **changes):
    """A plain row of a kind, with some of its fields changed."""
    return kind(**_PLAIN[kind] | changes)


def digest(*parts):
    """A print of anything that has a text."""
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def summary(values, name=None):
    """What the probe's summary of an array would be; with a sample if it is given a name."""
    array = np.asarray(values)
    flat = array.reshape(-1).astype(np.float64)
    count = max(1, flat.size)
    return Summary(
        print=digest(array.dtype, array.shape, array.tobytes()),
        dtype=str(array.dtype),
        shape=array.shape,
        mean=float(flat.sum()) / count,
        rms=math.sqrt(float((flat * flat).sum()) / count) if np.isfinite(flat).all() else math.nan,
        max_abs=float(np.abs(flat).max()) if flat.size else 0.0,
        sample=tuple(float(flat[i]) for i in sample_positions(name, flat.size)) if name else (),
    )


def events(*names):
    return tuple(Event(name=name, count=1) for name in names)


def write(folder, rows_of_ranks):
    """Write the rows of ranks 0, 1, …, each after a `Start` unless it has one."""
    for rank, rows in enumerate(rows_of_ranks):
        writer = ObservationWriter(observations_path(folder, rank))
        if not rows or not isinstance(rows[0], Start):
            writer.write(row(Start, rank=rank, world_size=len(rows_of_ranks)))
        for each in rows:
            writer.write(each)
        writer.close()
    return folder


def read(folder, reference=None):
    return Trace(Observations.read(folder), reference)


def trace(folder, *rows_of_ranks, reference=None):
    """The trace of ranks that left these rows."""
    return read(write(folder, rows_of_ranks), reference)
