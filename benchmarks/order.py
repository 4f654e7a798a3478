"""The first batch of a very long epoch: time and memory of Samestep's order and of torch's sampler."""

import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.measure import Estimate
from benchmarks.rows import Row
from samestep.data.loader import Loader
from samestep.world import Place, World

TITLE = "order: the first batch of a long epoch, rank 0 of 8, a fresh process each"

_SIZE = 8
_BATCH_SIZE = 256
_TORCH_BYTES_PER_EXAMPLE = 60  # a tensor, a list and an int object for each index, with room to spare
_MEGABYTE = 1e6


class _Numbers(Dataset[int]):
    """Example i is the number i: nothing but the order is measured."""

    def __init__(self, num_examples: int) -> None:
        self._num_examples = num_examples

    def __len__(self) -> int:
        return self._num_examples

    def __getitem__(self, index: int) -> int:
        return index


def run(*, quick: bool) -> list[Row]:
    many, more = (10**4, 10**5) if quick else (10**8, 10**9)
    fits = many * _TORCH_BYTES_PER_EXAMPLE <= _available_bytes()
    for_torch = many if fits else many // 10
    ours, ours_more = _first_batch("samestep", many), _first_batch("samestep", more)
    theirs = _first_batch("torch", for_torch)
    note = (
        ""
        if fits
        else f"torch's sampler had {for_torch:,} only: more does not fit into this machine's memory."
    )
    rows = [
        _row(f"time to the first of {many:,} examples", ours[0], theirs[0], "s", note),
        _row(f"memory at the first of {many:,} examples", ours[1], theirs[1], "MB", note),
        _row(f"time to the first of {more:,} examples", ours_more[0], None, "s", ""),
        _row(f"memory at the first of {more:,} examples", ours_more[1], None, "MB", ""),
    ]
    return rows


def _row(what: str, ours: float, theirs: float | None, unit: Any, note: str) -> Row:
    exact = Estimate(value=ours, low=ours, high=ours)
    digits = 4 if unit == "s" else 1
    shown = "" if theirs is None else f"{theirs:.{digits}f} {unit}"
    return Row(what=what, ours=f"{ours:.{digits}f} {unit}", theirs=shown, figure=exact, unit=unit, note=note)


def _first_batch(whose: str, num_examples: int) -> tuple[float, float]:
    """Seconds until the first batch is there, and megabytes by which the peak of the process grew."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(whose, num_examples, theirs), daemon=True)
    process.start()
    theirs.close()
    seconds, num_bytes = ours.recv()
    process.join()
    return seconds, num_bytes / _MEGABYTE


def _measure(whose: str, num_examples: int, answer: Connection) -> None:
    next(iter(_loader(whose, 1000)))  # imports and first calls are not the order's
    before = _peak_bytes()
    start = time.perf_counter()
    next(iter(_loader(whose, num_examples)))
    answer.send((time.perf_counter() - start, _peak_bytes() - before))


def _loader(whose: str, num_examples: int) -> Any:
    data = _Numbers(num_examples)
    if whose == "samestep":
        world = World(Place(size=_SIZE), torch.device("cpu"))
        return Loader(data, world=world, batch_size=_BATCH_SIZE)
    sampler = DistributedSampler(data, num_replicas=_SIZE, rank=0, shuffle=True)
    return DataLoader(data, batch_size=_BATCH_SIZE // _SIZE, sampler=sampler)


def _peak_bytes() -> int:
    # Linux's ru_maxrss starts from the parent's peak; the kernel's own figure of this process does not
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _available_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return 0
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024
