"""One training step on hardware that was not measured: what happens when, and where the time goes.

The step of the slowest rank, in order of time:

    forward        of all ranks side by side; a rank's forward and backward vary by `noise`
    backward       bucket k of the gradients is ready after a part of it
    exchange       bucket by bucket:  end_k = max(ready_k, end_{k−1}) + exchange_s(bytes_k)
    update         when the last bucket is back

Input is fetched meanwhile, ahead of time, by each node for its ranks: a step lasts at least as long as a node
takes to fetch what its ranks use. What this leaves out: compute that is slower while gradients are sent,
networks that others use too, hosts that run out of CPU. So it is a what-if, and mostly an optimistic one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from samestep.advise.cluster import Cluster
from samestep.advise.simulate_exchange import Algorithm, Floats, Ints, exchange_s, num_nodes
from samestep.advise.simulate_stragglers import slowest
from samestep.errors import ConfigError

FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
"""The defaults of PyTorch's DistributedDataParallel (torch/csrc/distributed/c10d/reducer.hpp)."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Gradients that are sent together, once the part `ready` of the backward pass is done."""

    num_bytes: float
    ready: float

    def __post_init__(self) -> None:
        _refuse_unless(0 < self.num_bytes < math.inf, "num_bytes", self.num_bytes, "above 0")
        _refuse_unless(0 <= self.ready <= 1, "ready", self.ready, "from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one rank does in a step, the same on every number of GPUs.

    `compute_s` is forward and backward of the mean rank, `backward_share` the part of it in which gradients
    come out: of a step that accumulates a batches, the last backward alone. `noise` is the standard deviation
    of a rank's compute time over its mean. A node delivers `input_examples_per_s` to all its ranks, each of
    which uses `examples` a step; None: input never limits. Without `buckets` they are those of DDP, ready in
    proportion to their bytes. For a global batch that does not grow, make one Step a number of GPUs.
    """

    compute_s: float
    gradient_bytes: float
    backward_share: float = 2 / 3
    update_s: float = 0.0
    noise: float = 0.0
    examples: float = 0.0
    input_examples_per_s: float | None = None
    buckets: tuple[Bucket, ...] | None = None

    def __post_init__(self) -> None:
        _refuse_unless(0 < self.compute_s < math.inf, "compute_s", self.compute_s, "above 0")
        _refuse_unless(0 < self.gradient_bytes < math.inf, "gradient_bytes", self.gradient_bytes, "above 0")
        _refuse_unless(0 <= self.backward_share <= 1, "backward_share", self.backward_share, "from 0 to 1")
        _refuse_unless(0 <= self.update_s < math.inf, "update_s", self.update_s, "0 or more")
        _refuse_unless(0 <= self.noise <= 1, "noise", self.noise, "from 0 to 1: 0.05 is 5 %")
        _refuse_unless(0 <= self.examples < math.inf, "examples", self.examples, "0 or more")
        if (rate := self.input_examples_per_s) is not None:
            _refuse_unless(0 < rate < math.inf, "input_examples_per_s", rate, "above 0, or None")
        if self.buckets is not None:
            held = math.fsum(bucket.num_bytes for bucket in self.buckets)
            right = math.isclose(held, self.gradient_bytes, rel_tol=1e-9)
            _refuse_unless(right, "gradient_bytes", self.gradient_bytes, f"what `buckets` hold, {held:g}")

    @property
    def exchanged(self) -> tuple[Bucket, ...]:
        """The buckets in the order in which they are sent."""
        return ddp_buckets(self.gradient_bytes) if self.buckets is None else self.buckets


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """One step on so many GPUs, and where its time goes. Never a measurement.

    `parts` add up to `step_s` exactly, in any order. `compute_s` has the update in it; the exchange that is
    hidden goes on behind compute and so is no part of the sum. Times are those of the mean step.
    """

    gpus: int
    num_nodes: int
    step_s: float
    compute_s: float
    waiting_s: float
    exchange_not_hidden_s: float
    input_s: float
    exchange_hidden_s: float

    @property
    def parts(self) -> Mapping[str, float]:
        return {
            "compute": self.compute_s,
            "waiting for the slowest": self.waiting_s,
            "exchange not hidden": self.exchange_not_hidden_s,
            "input pipeline": self.input_s,
        }

    @property
    def exchange_s(self) -> float:
        """How long gradients are under way, hidden or not."""
        return self.exchange_hidden_s + self.exchange_not_hidden_s


def ddp_buckets(gradient_bytes: float) -> tuple[Bucket, ...]:
    """A small bucket, then full ones, then what is left; ready in proportion to bytes."""
    full, rest = divmod(max(gradient_bytes - FIRST_BUCKET_BYTES, 0.0), BUCKET_BYTES)
    sizes = [min(gradient_bytes, FIRST_BUCKET_BYTES), *[float(BUCKET_BYTES)] * int(full), rest]
    sizes = [size for size in sizes if size > 0]
    ends = list(accumulate(sizes))
    return tuple(Bucket(num_bytes=size, ready=end / ends[-1]) for size, end in zip(sizes, ends, strict=True))


def simulate(step: Step, cluster: Cluster, gpus: int, *, algorithm: Algorithm = "auto") -> Simulated:
    """The step on so many GPUs of the cluster, which fill node after node."""
    return simulate_each(step, cluster, [gpus], algorithm=algorithm)[0]


def simulate_each(
    step: Step, cluster: Cluster, gpus: Iterable[int], *, algorithm: Algorithm = "auto"
) -> tuple[Simulated, ...]:
    """The step on each number of GPUs, all at once: quicker than one after the other."""
    worlds = list(gpus)
    for world in worlds:
        cluster.check(world)
    if not worlds:
        return ()
    counts = np.array(worlds, dtype=np.int64)
    ends, total_s = _ends(step, cluster, counts, algorithm)
    step_s = ends[-1]
    # in whole units of its last place, the times before the end have exact differences and sums
    tick = np.spacing(step_s)
    ends = np.maximum.accumulate(np.minimum(np.round(ends / tick) * tick, step_s), axis=0)
    compute_s, waiting_s, not_hidden_s, input_s = np.diff(ends, axis=0, prepend=0.0)
    hidden_s = np.maximum(np.round(total_s / tick) * tick - not_hidden_s, 0.0)
    columns = (num_nodes(cluster, counts), step_s, compute_s, waiting_s, not_hidden_s, input_s, hidden_s)
    return tuple(
        Simulated(
            gpus=world, num_nodes=int(nodes), step_s=whole, compute_s=compute, waiting_s=waiting,
            exchange_not_hidden_s=not_hidden, input_s=fetched, exchange_hidden_s=hidden,
        )
        for world, nodes, whole, compute, waiting, not_hidden, fetched, hidden in zip(
            worlds, *(column.tolist() for column in columns), strict=True
        )
    )  # fmt: skip


def _ends(step: Step, cluster: Cluster, gpus: Ints, algorithm: Algorithm) -> tuple[Floats, Floats]:
    """For each number of GPUs, when the mean rank would be done, the slowest, the exchange, and input (rows,
    each with the update after it); and how long gradients are under way."""
    buckets = step.exchanged
    under_way_s = exchange_s(np.array([bucket.num_bytes for bucket in buckets]), cluster, gpus, algorithm)
    factors, weights = slowest(step.noise, gpus)
    computed = factors[:, np.newaxis] * step.compute_s
    backward_s = step.compute_s * step.backward_share
    end = np.zeros_like(weights)
    for bucket, seconds in zip(buckets, under_way_s, strict=True):
        # counted from the end, so that no rounding makes a bucket later than backward
        ready = factors[:, np.newaxis] * (step.compute_s - backward_s * (1 - bucket.ready))
        end = np.maximum(ready, end) + seconds
    exchanged = np.sum(weights * np.maximum(end, computed), axis=0)
    ranks = np.minimum(gpus, cluster.gpus_per_node)
    fetched = ranks * step.examples / (step.input_examples_per_s or math.inf)
    mean = np.full(len(gpus), step.compute_s + step.update_s)
    slow = np.sum(weights * computed, axis=0) + step.update_s
    stepped = np.maximum.accumulate([mean, slow, exchanged + step.update_s, fetched], axis=0)
    return stepped, under_way_s.sum(axis=0)


def _refuse_unless(right: bool, name: str, value: float, wanted: str) -> None:
    if not right:
        raise ConfigError(f"`{name}` is {value}; it must be {wanted}.")
