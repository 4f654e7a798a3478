"""Frames of a road as a camera in a car sees it, each with the angle to steer, and a net that reads it.

The road is an arc on flat ground. The angle is that of pure pursuit: the front wheels lead the car through
the point of the road's middle that lies LOOK_AHEAD_M in front of it.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

HEIGHT, WIDTH, HORIZON = 32, 64, 10
FOCAL_PIXELS, CAMERA_M = 48.0, 1.4
ROAD_M, LINE_M, DASH_M = 7.0, 0.25, 6.0
LOOK_AHEAD_M, WHEELBASE_M = 12.0, 2.7


def frame(curvature_per_m, offset_m, generator):
    """A grey frame of a road whose middle lies `offset_m` to the right; light and grain are random."""
    rows, columns = np.mgrid[HORIZON + 1 : HEIGHT, :WIDTH]
    ahead_m = CAMERA_M * FOCAL_PIXELS / (rows - HORIZON)
    right_m = (columns - (WIDTH - 1) / 2) * ahead_m / FOCAL_PIXELS
    beside_m = np.abs(right_m - offset_m - curvature_per_m * ahead_m**2 / 2)
    is_dash = (ahead_m + generator.uniform(0, DASH_M)) % DASH_M < DASH_M / 2
    ground = np.where(beside_m < ROAD_M / 2, 0.35, 0.6)
    ground[(beside_m < LINE_M / 2) & is_dash] = 1.0
    picture = np.full((HEIGHT, WIDTH), 0.85)
    picture[HORIZON + 1 :] = ground
    return picture * generator.uniform(0.5, 1.0) + generator.normal(0, 0.05, picture.shape)


def steering_angle(curvature_per_m, offset_m):
    """In radians: atan(2 · wheelbase · sideways / distance²), Coulter 1992."""
    sideways_m = offset_m + curvature_per_m * LOOK_AHEAD_M**2 / 2
    return np.arctan(2 * WHEELBASE_M * sideways_m / (LOOK_AHEAD_M**2 + sideways_m**2))


def frames(count, seed):
    """So many frames, of shape (1, 32, 64) and centred, with their angles in tenths of a radian."""
    generator = np.random.default_rng(seed)
    curvatures, offsets = generator.uniform(-0.03, 0.03, count), generator.uniform(-1.5, 1.5, count)
    pictures = np.stack([frame(*road, generator) for road in zip(curvatures, offsets, strict=True)])
    angles = 10 * steering_angle(curvatures, offsets)
    return TensorDataset(
        torch.tensor(4 * pictures - 2).float()[:, None], torch.tensor(angles).float()[:, None]
    )


class Net(nn.Sequential):
    """Three convolutions that halve the frame, and two linear layers."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 5, stride=2, padding=2),
            nn.ELU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ELU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(24 * 4 * 8, 32),
            nn.ELU(),
            nn.Linear(32, 1),
        )
