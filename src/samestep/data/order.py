"""The order of the examples in an epoch, as a function of the position.

Knows nothing of ranks. Takes no memory that grows with the number of examples, and finds any position
without walking to it.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from samestep.keys import derive

Indices = NDArray[np.int64]

_ROUNDS = 12


class Order(Protocol):
    """The indices of an epoch by position."""

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> Indices:
        """The indices at positions start … stop - 1."""
        ...


class Sequential:
    """The order of the data set itself."""

    def __init__(self, num_examples: int) -> None:
        self._num_examples = num_examples

    def __len__(self) -> int:
        return self._num_examples

    def slice(self, start: int, stop: int) -> Indices:
        return np.arange(start, min(stop, self._num_examples), dtype=np.int64)


class Shuffled:
    """A pseudo-random permutation of 0 … n-1, chosen by (seed, epoch) and computed position by position.

    An alternating Feistel network over pairs (left, right) with left < a, right < b and a·b just above n
    (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): each round adds a hash of one half
    to the other, modulo its range, which can be undone, so the whole is a permutation of 0 … a·b-1. An
    image of n or more is sent round again until it falls below n ("cycle walking"): still a permutation.
    A handful of numbers are outside, so that hardly any position walks twice.
    """

    def __init__(self, num_examples: int, *, seed: int, epoch: int) -> None:
        self._num_examples = num_examples
        self._left_range = max(1, int(np.ceil(np.sqrt(num_examples))))
        self._right_range = max(1, -(-num_examples // self._left_range))
        self._keys = [np.uint64(derive(seed, "order", epoch, turn)) for turn in range(_ROUNDS)]

    def __len__(self) -> int:
        return self._num_examples

    def slice(self, start: int, stop: int) -> Indices:
        return self.at(np.arange(start, min(stop, self._num_examples), dtype=np.int64))

    def at(self, positions: Indices) -> Indices:
        """The indices at any positions."""
        images = self._permute(positions.astype(np.uint64))
        while (outside := images >= self._num_examples).any():
            images[outside] = self._permute(images[outside])
        return images.astype(np.int64)

    def _permute(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        right_range = np.uint64(self._right_range)
        left, right = np.divmod(numbers, right_range)
        for turn, key in enumerate(self._keys):
            if turn % 2:
                right = (right + _hash(left, key)) % right_range
            else:
                left = (left + _hash(right, key)) % np.uint64(self._left_range)
        return left * right_range + right


def _hash(numbers: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014) on key + number; the top 32 bits.

    32 bits keep the sum in the caller below 2^64; the halves are below 2^32 for every n below 2^63.
    """
    with np.errstate(over="ignore"):
        mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + key
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(32)
