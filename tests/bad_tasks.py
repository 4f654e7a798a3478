"""Tasks with one thing wrong each, for the command line to refuse in a clear sentence."""

import os

import torch
from torch.utils.data import IterableDataset

import tasks

good = tasks.image_task(steps=4)


class Empty(tasks.Images):
    def __len__(self) -> int:
        return 0


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self):
        while True:
            yield torch.zeros(2)


class RaisesOnRankOne(tasks.Images):
    def __getitem__(self, index: int):
        if os.environ["RANK"] == "1":
            raise ValueError("no such picture: cat.png")
        return super().__getitem__(index)


def mean_loss(model, batch):
    images, labels = batch
    return torch.nn.functional.cross_entropy(model(images), labels)


class Big(tasks.Net):
    """Too big for the file size that a test allows."""

    def __init__(self) -> None:
        super().__init__()
        self.ballast = torch.nn.Parameter(torch.zeros(300_000))


empty = tasks.image_task(train_data=Empty)
endless = tasks.image_task(train_data=Endless, steps=None, epochs=1)
raises = tasks.image_task(train_data=RaisesOnRankOne)
not_a_pair = tasks.image_task(loss=mean_loss)
big = tasks.image_task(model=Big, steps=10, checkpoint_every=2)
other_model = tasks.image_task(
    model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(50, 3)).double()
)
