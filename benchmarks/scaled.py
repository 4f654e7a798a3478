"""One training twice, for `samestep scale` to measure: as a task, and as a script written by hand.

`samestep scale benchmarks.scaled:task` and `samestep scale -- python -m benchmarks.scaled`. Both have the
CNN of the other benchmarks, without norm layers, and a batch that is shared by the ranks.
"""

import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.models import cnn
from benchmarks.trainings import Examples
from samestep import Task
from samestep.losses import supervised

BATCH_SIZE = 64
_EPOCHS = 10_000


def _optimizer(parameters: Any) -> SGD:
    return SGD(parameters, lr=1e-3, momentum=0.9)


task = Task(
    model=partial(cnn, batch_norm=False),
    train_data=partial(Examples, BATCH_SIZE, (3, 32, 32), 10),
    loss=supervised(nn.CrossEntropyLoss()),
    optimizer=_optimizer,
    batch_size=BATCH_SIZE,
    epochs=_EPOCHS,
)


def main() -> None:
    """The same by hand, on as many ranks as the launcher started."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    model: nn.Module = cnn(batch_norm=False)
    data = Examples(BATCH_SIZE, (3, 32, 32), 10)
    sampler: DistributedSampler[Any] | None = None
    if size > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE // size, sampler=sampler, shuffle=sampler is None)
    optimizer = _optimizer(model.parameters())
    for epoch in range(_EPOCHS):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for inputs, classes in loader:
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(inputs), classes).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
