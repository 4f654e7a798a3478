"""Seeds: the generators start from a given number; a program that seeds them itself does so afterwards."""

import random
import sys

from samestep.probe.arrival import Arrival


class Seeds:
    """Seeds Python's generator when it is installed, those of NumPy and torch as soon as they are loaded."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._arrivals = (Arrival("numpy.random", self._seed_numpy), Arrival("torch", self._seed_torch))

    def install(self) -> None:
        random.seed(self._seed)
        for arrival in self._arrivals:
            arrival.install()

    def uninstall(self) -> None:
        for arrival in self._arrivals:
            arrival.uninstall()

    def _seed_numpy(self) -> None:
        sys.modules["numpy.random"].seed(self._seed % 2**32)

    def _seed_torch(self) -> None:
        sys.modules["torch"].manual_seed(self._seed)
