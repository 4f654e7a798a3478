"""What the YAML file names and a trained model needs: data and network, in plain torch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


class Digits(TensorDataset):
    """Handwritten digits from `start` to `stop`: images of 8 x 8 pixels, and what they show."""

    def __init__(self, start=0, stop=None):
        pixels, digits = load_digits(return_X_y=True)
        images = torch.tensor(pixels[start:stop] / 16).float().reshape(-1, 1, 8, 8)
        super().__init__(images, torch.tensor(digits[start:stop]))


class Net(nn.Sequential):
    """Two convolutions with batch norm, and a linear layer."""

    def __init__(self, width=8):
        super().__init__(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 10),
        )


def penalty_of(model, size=1e-3):
    """A penalty on the weights of the last layer."""
    return size * model[-1].weight.square().sum()
