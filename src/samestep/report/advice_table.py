"""Advice as tables, the same on a terminal and on a page: how each figure is told. Judges nothing."""

from collections.abc import Callable, Sequence

from samestep.advise.words import amount_between, percent, percent_between, told, told_between
from samestep.report.advised import Advised, ClusterRow, OfferRow, OtherRow, SimulatedRow
from samestep.report.figures import Unit, seconds

Column = tuple[str, list[str]]

_LEGEND = {
    "result": "result: wait, start and training as expected",
    "90 %": "90 %: not exceeded nine times out of ten",
    "GPU-hours": "* no other is both sooner and cheaper",
    "growing batch": "growing batch: its size, its result, how many times the examples it needs",
    "same batch": "same batch: its size and its result, the same training on all of them",
}


def columns(advised: Advised) -> list[Column]:
    """One text a row; columns in which nothing is told are left out."""
    found = [(name, [tell(row) for row in advised.rows]) for name, tell in _COLUMNS]
    return [
        (name, texts)
        for name, texts in found
        if any(text.strip() for text in texts) and (name != "step" or advised.is_step_known)
    ]


def legend(advised: Advised, shown: Sequence[Column]) -> list[str]:
    """What has to be said of the columns shown, and of rows."""
    names = {name for name, _ in shown}
    of_ranges = "range: what was measured tells too little to ask for it"
    return [text for name, text in _LEGEND.items() if name in names] + (
        [of_ranges] if any(row.is_range for row in advised.rows) else []
    )


def simulated_columns(cluster: ClusterRow) -> list[Column]:
    return [(name, [tell(row) for row in cluster.rows]) for name, tell in _SIMULATED]


def _around(value: float, low: float, high: float) -> str:
    ends = f"{low:.2f}", f"{high:.2f}"
    return f"{value:.2f}" + (f" ({'–'.join(ends)})" if ends[0] != ends[1] else "")


def _step(row: OfferRow) -> str:
    """To three digits."""
    unit = Unit.of(row.step_s)
    is_wide = unit.number(row.low_s) != unit.number(row.high_s)
    return unit.told(row.step_s) + (f" ({unit.range(row.low_s, row.high_s)})" if is_wide else "")


def _wait(row: OfferRow) -> str:
    expected, high = told(row.wait_s), told(row.wait_high_s)
    return expected if expected == high else f"{expected} (to {high})"


def _hours(row: OfferRow) -> str:
    hours = amount_between(row.gpu_hours, row.gpu_hours_low, row.gpu_hours_high)
    return f"{hours}{' *' if row.is_pareto else '  '}"


def _price(row: OfferRow) -> str:
    if row.cost is None or row.cost_low is None or row.cost_high is None:
        return ""
    return amount_between(row.cost, row.cost_low, row.cost_high)


def _other(row: OfferRow, other: OtherRow | None) -> str:
    """Empty where it is the same batch, and where that has fewer examples than there are GPUs."""
    if other is None or other.batch_size is None or other.batch_size == row.batch_size:
        return ""
    return f"{other.batch_size:,.0f}: {told(other.result_s)}{' (range)' if other.is_range else ''}"


def _growing(row: OfferRow) -> str:
    grown, text = row.grows_batch, _other(row, row.grows_batch)
    if grown is None or not text:
        return ""
    return text + (f", ×{grown.examples_factor:.2f}" if grown.is_examples_factor_known else " at best")


_COLUMNS: tuple[tuple[str, Callable[[OfferRow], str]], ...] = (
    ("GPUs", lambda row: str(row.gpus)),
    ("", lambda row: "range" if row.is_range else row.kind),
    ("step", _step),
    ("speedup", lambda row: _around(row.speedup, row.speedup_low, row.speedup_high)),
    ("efficiency", lambda row: percent_between(row.efficiency, row.efficiency_low, row.efficiency_high)),
    ("training", lambda row: told_between(row.train_s, row.train_low_s, row.train_high_s)),
    ("wait", lambda row: _wait(row) if row.wait_high_s else ""),
    ("start", lambda row: told(row.start_s) if row.start_s else ""),
    ("result", lambda row: told(row.result_s)),
    ("90 %", lambda row: told(row.result_high_s)),
    ("GPU-hours", _hours),
    ("price", _price),
    ("growing batch", _growing),
    ("same batch", lambda row: _other(row, row.same_batch)),
)


def _best_to_worst(tell: Callable[[float], str], best: float, worst: float) -> str:
    """Both ends, or one figure where they read alike."""
    return tell(best) if tell(best) == tell(worst) else f"{tell(best)} – {tell(worst)}"


def _part(name: str) -> Callable[[SimulatedRow], str]:
    return lambda row: percent(row.parts.get(name, 0.0) / row.low_s)


_SIMULATED: tuple[tuple[str, Callable[[SimulatedRow], str]], ...] = (
    ("GPUs", lambda row: str(row.gpus)),
    ("nodes", lambda row: str(row.nodes)),
    ("step", lambda row: _best_to_worst(seconds, row.low_s, row.high_s)),
    ("speedup", lambda row: _best_to_worst("{:.2f}".format, row.speedup, row.speedup_low)),
    ("training", lambda row: _best_to_worst(told, row.train_s, row.train_high_s)),
    ("compute", _part("compute")),
    ("exchange not hidden", _part("exchange not hidden")),
)
