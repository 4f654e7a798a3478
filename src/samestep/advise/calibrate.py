"""`python -m samestep.advise.calibrate TABLE [FILE]`: makes the calibration that comes with the package.

TABLE has public scaling series (`series.read_tables`). Series that their sources call suspect are left out.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from samestep.advise.calibration import LEVELS, Calibration, features
from samestep.advise.competition import FEWEST, Competition
from samestep.advise.learning import learn
from samestep.advise.places import Floats
from samestep.advise.series import Series, read_tables


def usable(series: Sequence[Series]) -> list[Series]:
    """Those to learn from."""
    return [each for each in series if not each.is_suspect]


def competition(series: Series) -> Competition:
    """Of a series, for every number of its first cells."""
    return Competition(series.places, series.step_s, is_in_seconds=series.is_in_seconds)


def calibrated(series: Sequence[Series], competitions: Sequence[Competition] | None = None) -> Calibration:
    """From these series alone; competitions of the same series may be handed in, to fit their laws once."""
    competitions = competitions or list(map(competition, series))
    learnt = learn(series)
    rows, misses, weights = [], [], []
    for each, entered in zip(series, competitions, strict=True):
        count = len(each.step_s)
        for given in range(FEWEST, count):
            outlook = entered.outlook(learnt, given)
            # what is far has the answers of all laws in its range, whatever the misses of others
            near = ~outlook.is_far
            rows.append(features(outlook)[near])
            misses.append((np.log(each.step_s[given:]) - outlook.log_s)[near])
            # a long series counts more than a short one, and less than its share of all forecasts
            forecasts = (count - FEWEST) * (count - FEWEST + 1) / 2
            weights.append(np.full(int(near.sum()), forecasts**-0.5))
    all_rows, all_misses, all_weights = map(np.concatenate, (rows, misses, weights))
    width = _fitted_width(all_rows, all_misses, all_weights)
    ratios = all_misses / np.exp(all_rows @ width)
    return Calibration(
        learnt=learnt,
        width=tuple(map(float, width)),
        ratios=_quantiles(ratios, all_weights),
        sources=dict(sorted(Counter(each.source for each in series).items())),
    )


def _fitted_width(rows: Floats, misses: Floats, weights: Floats) -> Floats:
    """The widths under which the misses are likeliest, if they are Laplace's: `log w + |miss| / w`."""
    sizes = np.abs(misses)

    def loss(values: Floats) -> tuple[float, Floats]:
        log_width = rows @ values
        ratio = np.minimum(sizes * np.exp(-log_width), 1e6)
        pull = 1e-3 * float(weights.sum())
        return (
            float(weights @ (log_width + ratio)) + pull * float(values @ values),
            rows.T @ (weights * (1 - ratio)) + 2 * pull * values,
        )

    return np.asarray(minimize(loss, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B").x)


def _quantiles(ratios: Floats, weights: Floats) -> tuple[float, ...]:
    order = np.argsort(ratios)
    places = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return tuple(float(value) for value in np.interp(LEVELS, places, ratios[order]))


def main(arguments: Sequence[str]) -> None:
    if len(arguments) not in (1, 2):
        sys.exit(__doc__)
    path = Path(arguments[1]) if len(arguments) == 2 else Path(__file__).with_name("calibration.json")
    found = calibrated(usable(read_tables(Path(arguments[0]))))
    path.write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    sys.stderr.write(f"{path}: from {sum(found.sources.values())} series of {len(found.sources)} sources\n")


if __name__ == "__main__":
    main(sys.argv[1:])
