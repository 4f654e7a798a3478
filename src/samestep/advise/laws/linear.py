"""Laws that are sums of terms, each with a number of 0 or more: fitted exactly, by least squares with bounds.

With N GPUs on k nodes, g = N / k of them in each, and m examples a GPU, the time of a step is

    Amdahl           m · (a + b·N)                                     a part of the work is not shared
    universal        m · (a + b·(N−1) + c·N·(N−1))                     Gunther 1993: ranks disturb each other
    Ernest           a + b·m + c·log2 N + d·N                          Venkataraman et al. 2016
    logarithmic      a·m + b·log2 N                                    a tree
    bandwidth        a·m + b·(N−1)/N                                   a ring of large messages
    ring             a·m + b·(N−1)/N + c·(N−1)                         bandwidth, latency
    hierarchical     a·m + b·(g−1)/g + c·(g−1) + d·(k−1)/k + e·(k−1)   a ring inside each node, one between
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from samestep.advise.laws.law import Curve
from samestep.advise.places import Floats, Places

Terms = Callable[[Places], list[Floats]]


@dataclass(frozen=True)
class LinearLaw:
    """A sum of terms that are 0 or more, with numbers that are 0 or more."""

    name: str
    terms: Terms

    def fit(self, places: Places, step_s: Floats) -> Curve:
        numbers = self.numbers(places, step_s)
        least = 1e-9 * float(step_s.min())
        return lambda at: np.maximum(np.stack(self.terms(at), axis=1) @ numbers, least)

    def numbers(self, places: Places, step_s: Floats) -> Floats:
        """What minimises the sum of squared relative errors."""
        # here: loading scipy takes longer than most of what imports this package
        from scipy.optimize import nnls

        matrix = np.stack(self.terms(places), axis=1) / step_s[:, None]
        # columns of one size, so that a term of large values is as exact as one of small ones
        size = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(np.float64).tiny)
        found, _ = nnls(matrix / size, np.ones(len(step_s)))
        return np.asarray(found / size)


def _amdahl(at: Places) -> list[Floats]:
    return [at.batch_per_gpu, at.batch_per_gpu * at.gpus]


def _universal(at: Places) -> list[Floats]:
    m, n = at.batch_per_gpu, at.gpus
    return [m, m * (n - 1), m * n * (n - 1)]


def _ernest(at: Places) -> list[Floats]:
    return [np.ones_like(at.gpus), at.batch_per_gpu, np.log2(at.gpus), at.gpus]


def _logarithmic(at: Places) -> list[Floats]:
    return [at.batch_per_gpu, np.log2(at.gpus)]


def _bandwidth(at: Places) -> list[Floats]:
    return [at.batch_per_gpu, (at.gpus - 1) / at.gpus]


def _ring(at: Places) -> list[Floats]:
    return [*_bandwidth(at), at.gpus - 1]


def _hierarchical(at: Places) -> list[Floats]:
    g, k = at.gpus_per_node, at.nodes
    return [at.batch_per_gpu, (g - 1) / g, g - 1, (k - 1) / k, k - 1]


AMDAHL = LinearLaw("Amdahl", _amdahl)
UNIVERSAL = LinearLaw("universal scalability", _universal)
ERNEST = LinearLaw("Ernest", _ernest)
LOGARITHMIC = LinearLaw("logarithmic", _logarithmic)
BANDWIDTH = LinearLaw("bandwidth", _bandwidth)
RING = LinearLaw("ring", _ring)
HIERARCHICAL = LinearLaw("hierarchical", _hierarchical)
