"""The same training as a loop of Samestep: no rank, no wrap, no share of anything is spoken of."""

from collections.abc import Iterator
from itertools import islice

import samestep
import torch
from molecules import Held, Noisy
from network import Denoiser, features, generate, in_order
from samestep.metrics import FrechetDistance
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Sampler


class Endless(Sampler):
    """Shuffles the examples for ever."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield from torch.randperm(self.length, generator=generator).tolist()


world = samestep.init()
data, held = Noisy(120), Held(64)
model = world.replicate(in_order(Denoiser()))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def distance(model: nn.Module) -> float:
    metric = FrechetDistance(9).to(world.device)
    model.eval()
    for pictures, noise in world.loader(held, batch_size=32, train=False):
        metric.update(features(pictures), real=True)
        metric.update(features(generate(model, noise)), real=False)
    model.train()
    return world.compute(metric).item()


loader = world.loader(data, batch_size=16, sampler=Endless(len(data)))
for number, (pictures, noisy, level) in enumerate(islice(loader, 8), start=1):
    with world.step(optimizer) as step:
        step.backward(mse_loss(model(noisy, level), pictures, reduction="sum"), pictures.numel())
    if number % 4 == 0:
        frechet = distance(model)
        if world.is_first:
            print(f"step {number}: Fréchet distance {frechet:.4f}", flush=True)
