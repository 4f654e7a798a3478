"""The process-wide random generators of Python, NumPy and torch: set, kept and put back as one.

User code draws from them in data sets, samplers and collate functions. Knows nothing of what keys mean.
"""

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_MT19937_BYTES = 624 * 4 + 4


def seed_all(key: int) -> None:
    """Set all three generators from one key."""
    random.seed(key)
    np.random.seed(key & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(key)


class Snapshot:
    """The state of all three generators at one moment; taking and comparing one costs some 20 µs.

    A Gaussian that NumPy's legacy functions keep in reserve is not part of it and is dropped by `restore`.
    """

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = _numpy_state()
        self._torch = torch.default_generator.get_state()

    def has_moved(self) -> bool:
        """Whether anything was drawn or seeded since."""
        return (
            not torch.equal(self._torch, torch.default_generator.get_state())
            or self._numpy != _numpy_state()
            or self._python != random.getstate()
        )

    def restore(self) -> None:
        """Put all three back to this moment."""
        random.setstate(self._python)
        torch.default_generator.set_state(self._torch)
        if not self._numpy:
            return
        key = np.frombuffer(self._numpy[:-4], dtype=np.uint32)
        np.random.set_state(("MT19937", key, int.from_bytes(self._numpy[-4:], "little"), 0, 0.0))

    def to_tree(self) -> dict[str, Any]:
        """The states as plain values and tensors, for a checkpoint."""
        return {"python": self._python, "numpy": self._numpy, "torch": self._torch}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> "Snapshot":
        """The snapshot that `to_tree` described."""
        snapshot = cls.__new__(cls)
        snapshot._python = tree["python"]
        snapshot._numpy = tree["numpy"]
        snapshot._torch = tree["torch"]
        return snapshot


def _numpy_state() -> bytes:
    """The state of NumPy's process-wide generator: 624 words and the position among them.

    Read through the generator's documented ctypes address: `numpy.random.get_state` takes fifty times
    longer, and this runs twice a batch. A program that has swapped in another kind of generator keeps that
    one to itself.
    """
    generator = np.random.get_bit_generator()
    if not isinstance(generator, np.random.MT19937):
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


class Stream:
    """A random stream of its own for code that draws from the process-wide generators.

    Inside `with stream.active():` the generators continue where the stream left off; outside they are as
    if the stream did not exist.
    """

    def __init__(self, key: int) -> None:
        outside = Snapshot()
        seed_all(key)
        self._inside = Snapshot()
        outside.restore()

    @contextmanager
    def active(self) -> Iterator[None]:
        outside = Snapshot()
        self._inside.restore()
        try:
            yield
        finally:
            self._inside = Snapshot()
            outside.restore()
