"""Generators: the random number generators that all of a process shares: Python's, NumPy's and torch's.

Knows how to look at them, how to put them back, and how to seed them. Generators that a program made for
itself are not known here.
"""

import random
import sys
from typing import Any

import numpy as np
import torch

from samestep.data.fingerprint import fingerprint
from samestep.observed import Randomness


class Generators:
    """The states of the generators at one moment; taking them moves none. Torch's include that of the GPU."""

    def __init__(self) -> None:
        numpy_random = sys.modules.get("numpy.random")
        self._python = random.getstate()
        self._numpy: Any = numpy_random.get_state(legacy=False) if numpy_random is not None else None
        self._torch = torch.get_rng_state()
        self._device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def described(self) -> Randomness:
        """Their prints."""
        return Randomness(
            python=fingerprint(repr(self._python))[:16],
            numpy=None if self._numpy is None else fingerprint(self._numpy)[:16],
            torch=fingerprint(self._torch)[:16],
            device=None if self._device is None else fingerprint(self._device)[:16],
        )

    def moved(self) -> tuple[str, ...]:
        """Those that have been drawn from, or seeded, since."""
        now = Generators()
        differ = {
            "python": now._python != self._python,
            "numpy": self._numpy is not None and not _equal(now._numpy, self._numpy),
            "torch": not torch.equal(now._torch, self._torch)
            or (self._device is not None and not torch.equal(now._device, self._device)),  # type: ignore[arg-type]
        }
        return tuple(name for name, is_moved in differ.items() if is_moved)

    def put_back(self) -> None:
        """Let all of them go on from where they were."""
        random.setstate(self._python)
        if self._numpy is not None:
            np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._device is not None:
            torch.cuda.set_rng_state(self._device)


def seed_all(seed: int) -> None:
    """Seed all of them, each with what of the number it can take."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed % 2**63)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other))
