"""Orders of examples, and ways to share a global batch out over ranks."""

from itertools import pairwise

import numpy as np


def contiguous(indices, size):
    """Parts of nearly equal length, one after the other."""
    bounds = [len(indices) * i // size for i in range(size + 1)]
    return [indices[a:b] for a, b in pairwise(bounds)]


def one_and_rest(indices, size):
    """One example for the first rank, all others for the others."""
    return [indices[:1], *contiguous(indices[1:], size - 1)] if size > 1 else [indices]


def all_to_each(indices, size):
    return [indices] * size


def shuffled(number, num_examples, size):
    """The order of a pass, which is the same on any number of ranks."""
    return [int(i) for i in np.random.default_rng(number).permutation(num_examples)]
