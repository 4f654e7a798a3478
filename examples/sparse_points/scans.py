"""Scans of a street: rays of a laser scanner meet the ground, boxes and poles; every point has a class.

A scan has as many points as rays that hit something, from some hundred to some thousand, as real ones do.
"""

import functools

import numpy as np
import torch
from torch.utils.data import Dataset

CLASSES = ("ground", "box", "pole")
HEIGHT_M, REACH_M = 1.6, 16.0
REFLECTANCE = np.array([0.3, 0.5, 0.6])


def boxes_hit(rays, boxes):
    """Distances from the scanner to the first box along each ray: the slab method."""
    low, high = boxes[:, None, :3], boxes[:, None, 3:]
    with np.errstate(divide="ignore"):
        one, other = low / rays, high / rays
    enter, leave = np.minimum(one, other).max(-1), np.maximum(one, other).min(-1)
    return np.where((enter <= leave) & (enter > 0), enter, np.inf).min(0)


def poles_hit(rays, poles):
    """Distances to the first pole: a circle seen from above."""
    centre, radius = poles[:, None, :2], poles[:, None, 2]
    square = (rays[..., :2] ** 2).sum(-1)
    along, away = (rays[..., :2] * centre).sum(-1), (centre**2).sum(-1) - radius**2
    inside = along**2 - square * away
    hit = (inside > 0) & (along > 0)
    return np.where(hit, (along - np.sqrt(np.maximum(inside, 0))) / square, np.inf).min(0)


def scan(number):
    """Points (x, y, z) in metres, their reflectance, and their classes; the same for the same number."""
    rng = np.random.default_rng(number)
    view = rng.uniform(0.1, 1.0) * 2 * np.pi
    azimuth, elevation = np.meshgrid(np.arange(0.0, view, 2 * np.pi / 180), np.linspace(-0.5, 0.1, 16))
    azimuth, elevation = azimuth.ravel(), elevation.ravel()
    rays = np.stack(
        [np.cos(azimuth) * np.cos(elevation), np.sin(azimuth) * np.cos(elevation), np.sin(elevation)], -1
    )
    place = rng.uniform(3, 12, 14)[:, None] * np.stack([np.cos(a := rng.uniform(0, view, 14)), np.sin(a)], -1)
    size = rng.uniform(0.4, 1.2, (6, 2))
    ground, top = np.full((6, 1), -HEIGHT_M), rng.uniform(-0.8, 0.3, (6, 1))
    boxes = np.concatenate([place[:6] - size, ground, place[:6] + size, top], 1)
    poles = np.concatenate([place[6:], rng.uniform(0.05, 0.2, (8, 1))], 1)

    with np.errstate(divide="ignore"):
        down = np.where(rays[:, 2] < 0, -HEIGHT_M / rays[:, 2], np.inf)
    distances = np.stack([down, boxes_hit(rays, boxes), poles_hit(rays, poles)])
    labels, nearest = distances.argmin(0), distances.min(0)
    seen = (nearest < REACH_M) & (rng.random(len(rays)) < 0.95)
    labels, nearest, rays = labels[seen], nearest[seen], rays[seen]
    points = rays * (nearest + rng.normal(0, 0.02, len(rays)))[:, None]
    reflectance = REFLECTANCE[labels] + rng.normal(0, 0.15, len(rays))
    return points.astype(np.float32), reflectance.astype(np.float32), labels


class Scans(Dataset):
    """Scans from `start` to `stop`, each made when it is first asked for."""

    def __init__(self, start, stop):
        self.numbers = range(start, stop)
        self.scan = functools.cache(lambda number: tuple(map(torch.from_numpy, scan(number))))

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return self.scan(self.numbers[index])


def collate(scans):
    """All points one after the other, and how many each scan has."""
    points, reflectance, labels = (torch.cat(each) for each in zip(*scans, strict=True))
    return points, reflectance, torch.tensor([len(scan[0]) for scan in scans]), labels
