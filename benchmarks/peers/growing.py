"""Trainings with one size that can be chosen: to see how a cost grows with it."""

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from benchmarks.models import mlp
from benchmarks.peers.job import Job
from benchmarks.peers.workloads import Rows, workload

_WIDTH = 8


def growing(name: str) -> Job:
    """The job "kind:number": `world`, `parameters`, `tensors` or `shards`."""
    kind, number = name.split(":")
    job: Job = _ALL[kind](int(number))
    return job


def _world(batch_size: int) -> Job:
    """The tiny MLP with so large a batch: 8 a rank keep the kernels the same."""
    return replace(workload("tiny", quick=True), batch_size=batch_size)


def _parameters(number: int) -> Job:
    """One matrix with about so many numbers; the inputs are narrow, so that little is computed."""
    return replace(
        workload("tiny", quick=True),
        make_model=partial(_Wide, max(1, number // _WIDTH)),
        dataset=Rows(4096, (_WIDTH,), 4, distinct=64),
        batch_size=4,
    )


class _Wide(nn.Module):
    """A matrix that is wide: its outputs are folded into four classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, max(4, width // 4 * 4), bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layer(inputs).unflatten(1, (4, -1)).mean(2)
        return scores


def _tensors(number: int) -> Job:
    """So many small tensors of parameters, in layers that follow each other."""
    widths = [_WIDTH] * (number // 2) + [4]
    return replace(
        workload("tiny", quick=True),
        make_model=partial(mlp, *widths),
        dataset=Rows(4096, (_WIDTH,), 4, distinct=64),
        batch_size=4,
    )


def _shards(number: int) -> Job:
    """A batch of 64 in so many shards."""
    return replace(workload("cnn", quick=True), batch_size=64, shards=number)


_ALL = {"world": _world, "parameters": _parameters, "tensors": _tensors, "shards": _shards}
