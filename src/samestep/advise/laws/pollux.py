"""Pollux: computing and exchanging that overlap in part (Qiao et al., OSDI 2021).

Tg = a + b·m                              computing, with m examples a GPU
Ts = 0 on one GPU, else α + β·(N−2)       exchanging; α and β of the tier: within a node, between nodes
T  = (Tg^γ + Ts^γ)^(1/γ), 1 ≤ γ ≤ 10      γ = 1: one after the other; large: the longer of the two
"""

from dataclasses import dataclass

import numpy as np

from samestep.advise.laws.law import Curve
from samestep.advise.places import Floats, Places

_PULL = 1e-3
"""Pulls each number towards its least: what the cells do not tell stays there."""
_DIGITS = 9
"""Of a cell's time in units of the slowest: more than any clock tells."""
_A, _B, _WITHIN, _BETWEEN, _OVERLAP = 0, 1, [2, 3], [4, 5], 6
_LOW = np.array([0.0, 1e-3, 0.0, 0.0, 0.0, 0.0, 1.0])
_HIGH = np.array([2.0, 2.0, 100.0, 10.0, 100.0, 10.0, 10.0])
_START = np.array([0.05, 0.8, 0.1, 0.01, 0.1, 0.01, 1.5])


@dataclass(frozen=True)
class PolluxLaw:
    """Seven numbers (a, b, α and β within, α and β between, γ); a tier without cells has those of the other.

    Without cells of different batches, a stays at 0.
    """

    name: str = "Pollux"

    def fit(self, places: Places, step_s: Floats) -> Curve:
        # here: loading scipy takes longer than most of what imports this package
        from scipy.optimize import least_squares

        unit, batch = float(step_s.max()), float(places.batch_per_gpu.max())
        # the valley of the fit is flat: in other units of time the last digits would lead it elsewhere
        relative_s = np.array([float(f"{each:.{_DIGITS}g}") for each in step_s / unit])
        between = places.nodes > 1
        has_within, has_between = bool((~between & (places.gpus > 1)).any()), bool(between.any())
        # those that the cells say something about
        free = [_B, _OVERLAP]
        free += [] if places.is_batch_fixed else [_A]
        free += _WITHIN if has_within or not has_between else []
        free += _BETWEEN if has_between else []

        def full(numbers: Floats) -> Floats:
            result = np.zeros(len(_START))
            result[free] = numbers
            if not has_between:
                result[_BETWEEN] = result[_WITHIN]
            elif not has_within:
                result[_WITHIN] = result[_BETWEEN]
            return result

        def misses(numbers: Floats) -> Floats:
            errors = np.log(_step(full(numbers), places, batch) / relative_s)
            return np.concatenate([errors, _PULL * (numbers - _LOW[free])])

        bounds = (_LOW[free], _HIGH[free])
        found = least_squares(misses, _START[free], bounds=bounds, max_nfev=40, ftol=1e-6, xtol=1e-6)
        numbers = full(found.x)
        return lambda at: _step(numbers, at, batch) * unit


def _step(numbers: Floats, at: Places, batch: float) -> Floats:
    """The time of a step in units of the slowest cell, with examples in units of `batch`."""
    a, b, within, within_each, between, between_each, overlap = numbers
    computing = a + b * at.batch_per_gpu / batch
    more = np.maximum(at.gpus - 2, 0)
    exchanging = np.where(at.nodes > 1, between + between_each * more, within + within_each * more)
    exchanging = np.where(at.gpus > 1, exchanging, 0.0)
    # by the larger of the two, so that no power overflows
    larger = np.maximum(computing, exchanging)
    ratio = np.minimum(computing, exchanging) / larger
    return np.asarray(larger * (1.0 + ratio**overlap) ** (1.0 / overlap))


POLLUX = PolluxLaw()
