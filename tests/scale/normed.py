"""A task whose ranks mostly wait for each other's statistics: many norms, and little between them."""

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from samestep import Task
from samestep.losses import supervised

WIDTH, DEPTH = 16, 40


def make_model():
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))]
    return nn.Sequential(*layers)


def make_data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, WIDTH, generator=generator)
    return TensorDataset(inputs, torch.randint(WIDTH, (len(inputs),), generator=generator))


task = Task(
    model=make_model,
    train_data=make_data,
    loss=supervised(nn.CrossEntropyLoss()),
    optimizer=lambda parameters: SGD(parameters, lr=0.01),
    batch_size=64,
    epochs=100,
)
