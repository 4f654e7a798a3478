"""Calibration: how wide an interval has to be to hold what it says it holds.

Split conformal (Lei et al. 2018): on public series, each forecast's miss is divided by a width that is
foreseen for it from how sure the experience is, how far the laws disagree, how far the question lies from the
cells, and whether it is one of several nodes, large or small. The quantiles of these ratios, times the width
foreseen for a new question, are its interval. Low and high are told apart: steps are oftener slower than
foreseen. Far from all cells, and where a batch is shared out, it also holds what each law says that counts
there: few public series are of that kind, and quantiles of the others do not tell which law goes on to hold.

`shipped` is the one that comes with the package; `calibrate` makes one.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.advise.competition import Outlook
from samestep.advise.experience import Experience
from samestep.advise.growth import Growth, Rate
from samestep.advise.learnt import Learnt
from samestep.advise.places import Floats

LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
_FILE = "calibration.json"
_STANDSTILL = 0.75
"""How far the high end reaches from the outlook to no gain at all, where only the host's load would tell:
what holds the sparse-point series of MinkowskiEngine, whose hosts fill up between two and four GPUs."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was learnt from series of other jobs."""

    learnt: Learnt
    width: tuple[float, ...]
    """Of `features`: their sum is the logarithm of the width that is foreseen."""
    ratios: tuple[float, ...]
    """Of misses to widths, at `LEVELS`."""
    sources: dict[str, int]
    """Of how many series of which source."""

    def interval(
        self, outlook: Outlook, level: float, *, is_host_fine: NDArray[np.bool_] | bool = False
    ) -> tuple[Floats, Floats]:
        """Between which logarithms of seconds the step is, so often; it always has the outlook's in it.

        Where the host may fill up, and nothing tells that it is fine, the high end reaches far into that.
        """
        low_ratio, high_ratio = np.interp([(1 - level) / 2, (1 + level) / 2], LEVELS, self.ratios)
        width = np.exp(features(outlook) @ np.array(self.width))
        lost = np.maximum(outlook.standstill_log_s - outlook.log_s, 0.0)
        full = outlook.log_s + np.where(is_host_fine, 0.0, _STANDSTILL) * lost
        low = outlook.log_s + min(low_ratio, 0.0) * width
        high = np.maximum(outlook.log_s + max(high_ratio, 0.0) * width, full)
        # far from the cells, and where the batch is shared: few public series tell which law goes on to hold
        is_wide = outlook.is_far | outlook.is_strong
        least, most = (np.where(is_wide, end, outlook.log_s) for end in outlook.hull)
        return np.minimum(low, least), np.maximum(high, most)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Calibration":
        return cls(
            learnt=Learnt(
                experience=Experience(**values["learnt"]["experience"]),
                growth=Growth(**{tier: Rate(**rate) for tier, rate in values["learnt"]["growth"].items()}),
            ),
            width=tuple(values["width"]),
            ratios=tuple(values["ratios"]),
            sources=values["sources"],
        )


@cache
def shipped() -> Calibration:
    """The calibration that comes with the package."""
    return Calibration.from_json(json.loads(resources.files(__package__).joinpath(_FILE).read_text("utf-8")))


def features(outlook: Outlook) -> Floats:
    """One row a place."""
    ones = np.ones_like(outlook.log_s)
    return np.stack(
        [
            ones,
            np.log(outlook.scale),
            np.log(outlook.disagreement + 0.01),
            np.log2(1 + outlook.doublings),
            outlook.is_crossing,
            outlook.is_to_small,
            outlook.is_between,
            ones / outlook.num_cells,
            ones * outlook.is_strong,
        ],
        axis=1,
    )
