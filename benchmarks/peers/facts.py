"""What a library did on one rank, as facts: examples, gradients, predictions. Judges nothing.

Every function runs on a rank and returns what JSON can hold. The jobs are so small that what one process
would do can be computed beside.
"""

import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset, Sampler, WeightedRandomSampler

from benchmarks.peers.job import Batch, Job
from benchmarks.peers.libraries.base import Library
from benchmarks.peers.line import Line

_WIDTH = 4


class Numbered(Dataset[Any]):
    """Example i has some features, a target, a weight and its number i; it comes after `wait_s`.

    Weights are powers of two: no two sets of them have the same sum, so that no cut is right by chance.
    """

    def __init__(self, num_examples: int, *, wait_s: float = 0.0) -> None:
        self._num_examples = num_examples
        self._wait_s = wait_s

    def __len__(self) -> int:
        return self._num_examples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor, int]:
        if self._wait_s:
            time.sleep(self._wait_s)
        features = torch.tensor([float((index * (7 + k)) % 11 - 4) / 4 for k in range(_WIDTH)])
        return features, features.sum() + index % 3, torch.tensor(2.0 ** (index % 8)), index


class Unseeded(Sampler[int]):
    """The even numbers, in an order that nobody can repeat."""

    def __init__(self, num_examples: int) -> None:
        self._indices = list(range(0, num_examples, 2))

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[int]:
        return iter(random.SystemRandom().sample(self._indices, len(self)))


def examples(
    library: Library,
    line: Line,
    *,
    num_examples: int,
    batch_size: int,
    sampler: str | None = None,
    folder: str | None = None,
    save_after: int | None = None,
    resume_at: int | None = None,
    wait_s: float = 0.0,
    only_first: bool = False,
) -> dict[str, Any]:
    """The numbers of the examples of an epoch that this rank trained on, and when its first step was done.

    The epoch ends after its first step if `only_first`.
    """
    seen: list[int] = []
    steps_s: list[float] = []

    def after_step(batch: Batch) -> bool:
        steps_s.append(time.perf_counter())
        if batch is not None:
            seen.extend(batch[-1].tolist())
        return only_first

    job = _job(
        Numbered(num_examples, wait_s=wait_s),
        batch_size,
        sampler=_sampler(sampler, num_examples),
        epochs=1,
        after_step=after_step,
        folder=None if folder is None else Path(folder),
        save_after=save_after,
        resume_at=resume_at,
    )
    began = time.perf_counter()
    library.train(job)
    return {"seen": seen, "first_step_s": steps_s[0] - began if steps_s else None}


def gradient(library: Library, line: Line, *, kind: str, num_examples: int, sync: bool) -> dict[str, Any]:
    """How far the update of one batch is from that of one process: its largest difference, relative."""
    made: list[nn.Module] = []
    found: list[dict[str, Tensor]] = []

    def make_model() -> nn.Module:
        made.append(_normed() if kind == "batch norm" else nn.Linear(_WIDTH, 1))
        return made[-1]

    def after_step(batch: Batch) -> bool:
        found.append({name: value.detach().clone() for name, value in made[-1].named_parameters()})
        return True

    job = _job(
        Numbered(num_examples),
        8,
        make_model=make_model,
        make_optimizer=_by_gradient,
        is_weighted=kind == "weights",
        sync_batch_norm=sync,
        after_step=after_step,
    )
    library.train(job)
    expected = _one_step(job, num_examples)
    largest = max(float(value.abs().max()) for value in expected.values())
    torch.manual_seed(0)
    start = dict(make_model().named_parameters())
    difference = max(
        float((start[name].detach() - after - expected[name]).abs().max()) for name, after in found[0].items()
    )
    return {"error": difference / largest}


def prediction(library: Library, line: Line, *, num_examples: int) -> list[float]:
    """The outputs that the library gives, where each should be the number of its example."""
    return library.predict(_job(Numbered(num_examples), 4, output=lambda model, batch: batch[-1].float()))


def metric(library: Library, line: Line, *, num_examples: int) -> float:
    """The mean of the squares of the numbers of all examples, as the library has it."""
    job = _job(Numbered(num_examples), 4, output=lambda model, batch: batch[-1].float().square())
    return library.average(job)


def _job(dataset: Dataset[Any], batch_size: int, **settings: Any) -> Job:
    is_weighted = settings.setdefault("is_weighted", False)

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        features, targets, weights, _ = batch
        found: Tensor = (model(features).squeeze(-1) - targets).square()
        return found * weights if is_weighted else found

    def weight(batch: Batch) -> Tensor | int:
        return batch[2].sum() if is_weighted else len(batch[1])

    settings.setdefault("make_model", lambda: nn.Linear(_WIDTH, 1))
    settings.setdefault("make_optimizer", _sgd)
    return Job(
        dataset=dataset,
        batch_size=batch_size,
        total=lambda model, batch: losses(model, batch).sum(),
        mean=lambda model, batch: losses(model, batch).sum() / weight(batch),
        weight=weight,
        **settings,
    )


def _sgd(parameters: Iterable[Tensor]) -> Optimizer:
    return SGD(parameters, lr=1e-3)


def _by_gradient(parameters: Iterable[Tensor]) -> Optimizer:
    return SGD(parameters, lr=1.0)  # its update is the gradient


def _normed() -> nn.Module:
    return nn.Sequential(nn.Linear(_WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def _one_step(job: Job, num_examples: int) -> dict[str, Tensor]:
    """The gradient of one process that has all examples in its batch."""
    batch = torch.utils.data.default_collate([job.dataset[i] for i in range(num_examples)])
    model, _ = job.made()
    job.mean(model, batch).backward()
    return {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def _sampler(name: str | None, num_examples: int) -> Sampler[int] | None:
    if name == "unseeded":
        return Unseeded(num_examples)
    if name == "weighted":
        weights = [float(i % 2 == 0) for i in range(num_examples)]
        return WeightedRandomSampler(weights, num_examples // 2, replacement=False)
    return None
