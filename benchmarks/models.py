"""The models that are trained. Nothing of Samestep is loaded for them: the others train them, too."""

from itertools import pairwise

from torch import nn


def cnn(*, batch_norm: bool) -> nn.Module:
    """Three convolutions and a linear layer for 3 × 32 × 32 images of ten classes."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=not batch_norm))
        layers += [nn.BatchNorm2d(outputs)] if batch_norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


def mlp(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
