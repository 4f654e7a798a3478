"""The first batch of a very long epoch: time and memory of Samestep's order and of torch's sampler."""

import resource
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.processes import call
from benchmarks.rows import Row
from samestep.data.loader import Loader
from samestep.world import Place, World

TITLE = "order: up to the first batch, rank 0 of 8, against DistributedSampler, a fresh process each"

_SIZE = 8
_BATCH_SIZE = 256
_TORCH_BYTES_PER_EXAMPLE = 100  # a tensor, two lists and an int object for each index, with room to spare
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
    ours, ours_more = (call(_first_batch, "samestep", number) for number in (many, more))
    theirs = call(_first_batch, "torch", for_torch)
    note = (
        "" if fits else f"torch's sampler had {for_torch:,} only: more needs more memory than is free here."
    )
    return [
        Row(what=f"{many:,} examples: time", unit="s", ours=ours[0], theirs=theirs[0], note=note),
        Row(what=f"{many:,} examples: memory", unit="MB", ours=ours[1], theirs=theirs[1], note=note),
        Row(what=f"{more:,} examples: time", unit="s", ours=ours_more[0], theirs=None),
        Row(what=f"{more:,} examples: memory", unit="MB", ours=ours_more[1], theirs=None),
    ]


def _first_batch(whose: str, num_examples: int) -> tuple[float, float]:
    """Seconds until the first batch is there, and megabytes by which the peak of the process grew."""
    next(iter(_loader(whose, 1000)))  # imports and first calls are not the order's
    before = _peak_bytes()
    start = time.perf_counter()
    next(iter(_loader(whose, num_examples)))
    return time.perf_counter() - start, (_peak_bytes() - before) / _MEGABYTE


def _loader(whose: str, num_examples: int) -> Any:
    data = _Numbers(num_examples)
    if whose == "samestep":
        world = World(Place(size=_SIZE), torch.device("cpu"))
        return Loader(data, world=world, batch_size=_BATCH_SIZE)
    sampler: DistributedSampler[int] = DistributedSampler(data, num_replicas=_SIZE, rank=0, shuffle=True)
    return DataLoader(data, batch_size=_BATCH_SIZE // _SIZE, sampler=sampler)


def _peak_bytes() -> int:
    # Linux's ru_maxrss starts from the parent's peak; the kernel's own figure of this process does not
    status = Path("/proc/self/status")
    if status.exists():
        return _kilobytes(status, "VmHWM") * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _available_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    return _kilobytes(meminfo, "MemAvailable") * 1024 if meminfo.exists() else 0


def _kilobytes(file: Path, name: str) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
