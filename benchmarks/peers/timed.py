"""What a rank does to be timed: trainings at a gate, peaks of memory, first batches. Compares nothing."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.peers.gate import Gate
from benchmarks.peers.growing import growing
from benchmarks.peers.job import Batch, Job
from benchmarks.peers.libraries.base import Library
from benchmarks.peers.line import Line
from benchmarks.peers.workloads import workload

_MEGABYTE = 1e6
_STEPS_TO_PEAK = 5


def in_turns(library: Library, line: Line, *, name: str, quick: bool) -> None:
    """Train the workload of that name, step by step as the conductor says."""
    library.train(replace(_job(name, quick), after_step=Gate(line)))


def peak(library: Library, line: Line, *, name: str, quick: bool) -> float:
    """Megabytes that this process has had at most after some steps; to be asked of a new one."""
    _train_steps(library, _job(name, quick), _STEPS_TO_PEAK)
    return _peak_bytes() / _MEGABYTE


def first_batch(library: Library, line: Line, *, num_examples: int) -> dict[str, float]:
    """Seconds to the first step of so long an epoch, and megabytes that it takes more than a short one."""
    job = workload("tiny", quick=True)
    _train_steps(library, replace(job, dataset=_Many(1000)), 1)  # first calls are not the order's
    _forget_peak()
    before = _peak_bytes()
    start = time.perf_counter()
    _train_steps(library, replace(job, dataset=_Many(num_examples)), 1)
    return {"seconds": time.perf_counter() - start, "megabytes": (_peak_bytes() - before) / _MEGABYTE}


class _Many(Dataset[Any]):
    """As many examples as are wanted, all alike: nothing but their order takes time or memory."""

    def __init__(self, num_examples: int) -> None:
        self._num_examples = num_examples
        self._example = torch.zeros(16), torch.tensor(0)

    def __len__(self) -> int:
        return self._num_examples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._example


def _job(name: str, quick: bool) -> Job:
    return growing(name) if ":" in name else workload(name, quick=quick)


def _train_steps(library: Library, job: Job, number: int) -> None:
    left = number

    def after_step(batch: Batch) -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    library.train(replace(job, after_step=after_step))


def _forget_peak() -> None:
    file = Path("/proc/self/clear_refs")
    if file.exists():
        file.write_text("5")


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
