"""The trainings that are timed, each as an endless generator that makes one step between two `yield`s.

The hand-written loops are what a careful person writes without Samestep, and no more. Both sides of a
comparison have equal models, data, batches and optimizer settings.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from benchmarks.models import cnn
from samestep.train.session import Session
from samestep.train.update import Update
from samestep.world import enter

Make = Callable[[], nn.Module]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
Example = tuple[Tensor, Tensor]
STEPS_PER_EPOCH = 64


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """SGD as torch makes it."""
    return SGD(parameters, lr=1e-3, momentum=0.9)


def fused_sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The fastest SGD of torch's."""
    return SGD(parameters, lr=1e-3, momentum=0.9, fused=True)


def fused_adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The fastest AdamW of torch's."""
    return AdamW(parameters, lr=1e-3, fused=True)


class Examples(Dataset[Example]):
    """Random examples for one short epoch, in a data set as people write them."""

    def __init__(self, batch_size: int, shape: tuple[int, ...], num_classes: int) -> None:
        generator = torch.Generator().manual_seed(0)
        number = batch_size * STEPS_PER_EPOCH
        self.inputs = torch.randn(number, *shape, generator=generator)
        self.classes = torch.randint(num_classes, (number,), generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Example:
        return self.inputs[index], self.classes[index]

    def as_tensors(self) -> TensorDataset:
        """The same examples in torch's own data set."""
        return TensorDataset(self.inputs, self.classes)

    def first(self, number: int) -> Example:
        """The first examples, as a batch."""
        return self.inputs[:number], self.classes[:number]


def plain(make: Make, data: Dataset[Any], batch_size: int) -> Iterator[None]:
    """One device, by hand."""
    model, optimizer = _made(make)
    loader = DataLoader(data, batch_size=batch_size, shuffle=True)
    while True:
        for inputs, classes in loader:
            _step(model, optimizer, inputs, classes)
            yield


def ddp(
    make: Make,
    data: Dataset[Any],
    batch_size: int,
    world: Session,
    *,
    turns: int = 1,
    optimizer_of: MakeOptimizer = sgd,
) -> Iterator[None]:
    """Several ranks by hand, with every setting that makes DDP faster; gradients accumulated in `turns`."""
    model, optimizer = _made(make, optimizer_of)
    # torch refuses to leave out an exchange of a static graph
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=turns == 1)
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=batch_size // world.size, sampler=sampler)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for inputs, classes in loader:
            torch.use_deterministic_algorithms(False)
            if turns == 1:
                _step(replica, optimizer, inputs, classes)
            else:
                _accumulated_step(replica, optimizer, inputs.chunk(turns), classes.chunk(turns))
            yield
        epoch += 1


def samestep(
    make: Make,
    data: Dataset[Any],
    batch_size: int,
    world: Session,
    *,
    optimizer_of: MakeOptimizer = sgd,
    update: Update = "auto",
) -> Iterator[None]:
    """Any number of ranks, with Samestep."""
    model, optimizer = _made(lambda: world.replicate(make()), optimizer_of)
    loader = world.loader(data, batch_size=batch_size)
    while True:
        batches = iter(loader)
        while True:
            # in a comparison the other side may be another world, or none
            enter(world)
            torch.use_deterministic_algorithms(world.shards is not None)
            batch = next(batches, None)
            if batch is None:
                break
            inputs, classes = batch
            with world.step(optimizer, update=update) as step:
                step.backward(cross_entropy(model(inputs), classes, reduction="sum"), len(classes))
            if step.is_last_turn:
                yield


def plain_without_loader(make: Make, data: Examples, batch_size: int) -> Iterator[None]:
    """The steps of `plain` on one batch over and over."""
    model, optimizer = _made(make)
    inputs, classes = data.first(batch_size)
    while True:
        _step(model, optimizer, inputs, classes)
        yield


def samestep_without_loader(make: Make, data: Examples, batch_size: int, world: Session) -> Iterator[None]:
    """The steps of `samestep` on one batch over and over."""
    model, optimizer = _made(lambda: world.replicate(make()))
    inputs, classes = data.first(batch_size)
    while True:
        with world.step(optimizer) as step:
            step.backward(cross_entropy(model(inputs), classes, reduction="sum"), len(classes))
        yield


def batch_size_for(step_s: float) -> int:
    """The batch with which a plain step of the CNN takes about `step_s` on this machine; an even number."""
    batch_size = 32
    # again with what the last attempt found: time is not proportional to the batch, nor steady at first
    for _ in range(4):
        program = plain(lambda: cnn(batch_norm=False), Examples(batch_size, (3, 32, 32), 10), batch_size)
        for _ in range(10):
            next(program)
        seconds = []
        for _ in range(40):
            start = time.perf_counter()
            next(program)
            seconds.append(time.perf_counter() - start)
        batch_size = max(8, 2 * round(batch_size * step_s / median(seconds) / 2))
    return batch_size


def _made(make: Make, optimizer_of: MakeOptimizer = sgd) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = make()
    return model, optimizer_of(model.parameters())


def _accumulated_step(
    model: DistributedDataParallel,
    optimizer: Optimizer,
    inputs: tuple[Tensor, ...],
    classes: tuple[Tensor, ...],
) -> None:
    optimizer.zero_grad(set_to_none=True)
    total = sum(map(len, classes))
    for turn, (some, their_classes) in enumerate(zip(inputs, classes, strict=True), start=1):
        with model.no_sync() if turn < len(inputs) else nullcontext():
            (cross_entropy(model(some), their_classes, reduction="sum") / total).backward()
    optimizer.step()


def _step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, classes: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    cross_entropy(model(inputs), classes).backward()
    optimizer.step()
