"""A sparse U-Net in plain torch: features only where there are points, convolutions by gather and scatter.

Coordinates are sorted numbers, and a neighbour is found by bisection: little to compute, and much to look up.
"""

import itertools

import torch
from torch import nn

SIDE = 1 << 12
"""Voxels along an edge of the world, which has the scanner in its middle."""
OFFSETS = [(x * SIDE + y) * SIDE + z for x, y, z in itertools.product((-1, 0, 1), repeat=3)]


def keys_of(points, lengths, size_m):
    """One number a point: that of its scan and of the voxel of `size_m` metres that it is in."""
    scans = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    x, y, z = (points / size_m).floor().long().add(SIDE // 2).unbind(1)
    return ((scans * SIDE + x) * SIDE + y) * SIDE + z


def coarser(keys):
    """The numbers of the voxels of twice the size."""
    z, y, x, scans = keys % SIDE, keys // SIDE % SIDE, keys // SIDE**2 % SIDE, keys // SIDE**3
    return ((scans * SIDE + x // 2) * SIDE + y // 2) * SIDE + z // 2


def neighbours_of(sites):
    """For each site (sorted) and each of 27 directions: which site is there; one past the last if none is."""
    wanted = sites[:, None] + torch.tensor(OFFSETS, device=sites.device)
    at = torch.searchsorted(sites, wanted).clamp_(max=len(sites) - 1)
    return torch.where(sites[at] == wanted, at, len(sites))


def mean_of(features, inverse, num_sites):
    """The mean of the rows that go to each site."""
    total = features.new_zeros(num_sites, features.shape[1]).index_add(0, inverse, features)
    return total / torch.bincount(inverse, minlength=num_sites)[:, None]


class SparseConv(nn.Module):
    """A convolution of 3 x 3 x 3 voxels, with norm and ReLU, at the sites that there are."""

    def __init__(self, num_in, num_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(27, num_in, num_out) / (8 * num_in) ** 0.5)
        self.norm = nn.BatchNorm1d(num_out)

    def forward(self, features, neighbours):
        padded = nn.functional.pad(features, (0, 0, 0, 1))  # a site that is not there has zeros
        around = padded.index_select(0, neighbours.flatten()).reshape(len(features), -1)
        return torch.relu(self.norm(around @ self.weight.flatten(0, 1)))


class SparseUNet(nn.Module):
    """Classes of points: voxels, coarser voxels, and back to the points."""

    def __init__(self, width=16, num_classes=3, voxel_m=0.2):
        super().__init__()
        self.voxel_m = voxel_m
        self.first = SparseConv(2, width)
        self.deep = SparseConv(width, 2 * width)
        self.last = SparseConv(3 * width, width)
        self.head = nn.Linear(width + 2, num_classes)

    def forward(self, points, reflectance, lengths):
        inputs = torch.stack([points[:, 2], reflectance], 1)
        fine, to_fine = torch.unique(keys_of(points, lengths, self.voxel_m), return_inverse=True)
        coarse, to_coarse = torch.unique(coarser(fine), return_inverse=True)
        around = neighbours_of(fine)

        voxels = self.first(mean_of(inputs, to_fine, len(fine)), around)
        blocks = self.deep(mean_of(voxels, to_coarse, len(coarse)), neighbours_of(coarse))
        voxels = self.last(torch.cat([voxels, blocks[to_coarse]], 1), around)
        return self.head(torch.cat([voxels[to_fine], inputs], 1))
