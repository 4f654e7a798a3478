"""The process-wide random generators of Python, NumPy and torch: set, kept and put back as one.

User code draws from them in data sets, samplers and collate functions. Knows nothing of what keys mean.
"""

import ctypes
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.random import MT19937, get_bit_generator  # type: ignore[attr-defined]  # since NumPy 1.24

_MT19937_WORDS = 624
# a position among the words, and the words
_PYTHON_STATE = struct.Struct(f"=i{_MT19937_WORDS}I")
_NUMPY_STATE_BYTES = 4 * _MT19937_WORDS + 4


def seed_all(key: int) -> None:
    """Set all three generators from one key."""
    random.seed(key)
    np.random.seed(key & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(key)


class Snapshot:
    """The state of all three generators at one moment; taking and comparing one costs some 5 µs.

    A Gaussian that NumPy's legacy functions keep in reserve is not part of it and is dropped by `restore`.
    """

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._python = _python_state()
        self._numpy = _numpy_state()
        self._torch = torch.default_generator.get_state()

    def has_moved(self) -> bool:
        """Whether anything was drawn or seeded since."""
        return (
            self._python != _python_state()
            or self._numpy != _numpy_state()
            or _bytes_of(self._torch) != _bytes_of(torch.default_generator.get_state())
        )

    def restore(self) -> None:
        """Put all three back to this moment."""
        words, gauss = self._python
        at, *numbers = _PYTHON_STATE.unpack(words)
        random.setstate((random.Random.VERSION, (*numbers, at), gauss))
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
        snapshot._python = tuple(tree["python"])
        snapshot._numpy = tree["numpy"]
        snapshot._torch = tree["torch"]
        return snapshot


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.nbytes)  # `torch.equal` takes three times as long


def _numpy_state() -> bytes:
    """The state of NumPy's process-wide generator: 624 words and the position among them.

    Read through the generator's documented ctypes address: `numpy.random.get_state` takes fifty times
    longer, and this runs twice a batch. A program that has swapped in another kind of generator keeps that
    one to itself.
    """
    generator = get_bit_generator()
    if not isinstance(generator, MT19937):
        return b""
    return _window(generator.ctypes.state_address, _NUMPY_STATE_BYTES).raw


def _python_state() -> tuple[bytes, float | None]:
    """The state of Python's process-wide generator, and the Gaussian that it keeps in reserve."""
    return _python_words(), _PYTHON.gauss_next


def _packed_words() -> bytes:
    _, (*words, at), _ = random.getstate()
    return _PYTHON_STATE.pack(at, *words)


def _words_in_place() -> bytes:
    return _PYTHON_WINDOW.raw


@cache
def _window(address: int, num_bytes: int) -> ctypes.Array[ctypes.c_char]:
    """The memory at an address, to be read while its owner is in the hands of the caller."""
    return (ctypes.c_char * num_bytes).from_address(address)


# `random.getstate` makes 624 objects, which twice a batch is most of what a loader would add to a small step.
# CPython keeps the words behind the head of the object; where they are not found there, it has to be asked.
_PYTHON: Any = random.seed.__self__  # type: ignore[attr-defined]
_PYTHON_WINDOW = _window(id(_PYTHON) + object.__basicsize__, _PYTHON_STATE.size)
_is_in_place = (
    type(_PYTHON).__basicsize__ >= object.__basicsize__ + _PYTHON_STATE.size
    and _words_in_place() == _packed_words()
)
_python_words = _words_in_place if _is_in_place else _packed_words


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Inside, the generators are set from `key`; afterwards they are as before."""
    outside = Snapshot()
    seed_all(key)
    try:
        yield
    finally:
        outside.restore()


class Stream:
    """A random stream of its own for code that draws from the process-wide generators.

    Inside `with stream.active():` the generators continue where the stream left off; outside they are as
    if the stream did not exist.
    """

    def __init__(self, key: int) -> None:
        with seeded(key):
            self._inside = Snapshot()

    @contextmanager
    def active(self) -> Iterator[None]:
        outside = Snapshot()
        self._inside.restore()
        try:
            yield
        finally:
            self._inside = Snapshot()
            outside.restore()
