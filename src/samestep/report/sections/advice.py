"""How many GPUs to ask for: the advice in words, its table, and four pictures of it."""

from collections.abc import Mapping
from typing import Any

from samestep.advise.words import amount_between, percent, percent_between, told, told_between
from samestep.advise.words import gpus as told_gpus
from samestep.report import advice_drawings as drawings
from samestep.report.advised import Advised, ClusterRow, OfferRow, SimulatedRow, read_advised
from samestep.report.advising import best_to_worst, step_told
from samestep.report.figures import seconds
from samestep.report.material import Material
from samestep.report.section import Section

_OLD = "This sweep was measured again after the advice was given: run `samestep advise` again."
_BATCH = {
    "same": "The global batch is the same on every number of GPUs.",
    "grows": "The global batch grows with the GPUs: that is other training than on one.",
}


def _values(material: Material) -> Mapping[str, Any] | None:
    advised = read_advised(material.folder)
    if advised is None:
        return None
    if advised.is_old:
        return {"old": _OLD}
    rows, asked = advised.rows, advised.recommended_gpus
    columns = [
        (name, [tell(row) for row in rows])
        for name, tell in _COLUMNS
        if any(tell(row) for row in rows) and (name != "step" or advised.is_step_known)
    ]
    known = {(found.cause, found.message) for found in material.findings}
    return {
        "old": "",
        "reason": advised.reason,
        "batch": _BATCH[advised.batch],
        "titles": [name for name, _ in columns],
        "rows": [
            (row, row.gpus == asked, [values[place] for _, values in columns])
            for place, row in enumerate(rows)
        ],
        "has_range": any(row.is_range for row in rows),
        "what_ifs": advised.what_ifs,
        "findings": [each for each in advised.findings if (each.cause, each.message) not in known],
        "remarks": advised.remarks,
        "size": drawings,
        "lines": [each for each in _lines(advised) if each[2] is not None],
        "stacks": drawings.stacks(rows, asked),
        "stack_words": "; ".join(f"{told_gpus(row.gpus)}: {told(row.result_s)}" for row in rows),
        "cluster": None if advised.cluster is None else _simulated(advised.cluster),
    }


def _simulated(cluster: ClusterRow) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "titles": [name for name, _ in _SIMULATED],
        "rows": [(row.gpus, [tell(row) for _, tell in _SIMULATED]) for row in cluster.rows],
        "remarks": cluster.remarks,
        "sources": cluster.sources,
    }


def _lines(advised: Advised) -> list[tuple[str, str, drawings.Drawing | None, str]]:
    """Pictures with a line: name, title, drawing, and what stands across."""
    rows, asked = advised.rows, advised.recommended_gpus
    paid = "Price" if all(row.cost is not None for row in rows) else "GPU-hours"
    return [
        ("speedup", "Speedup, with the interval of each", drawings.speedups(rows, asked), "GPUs"),
        (
            "cost",
            f"{paid} against hours to the result",
            drawings.costs(rows, asked),
            "hours",
        ),
        (
            "examples",
            "Examples needed if the batch grows with the GPUs, as a factor",
            drawings.growing(rows, asked),
            "GPUs",
        ),
    ]


def _grown(row: OfferRow) -> str:
    grown = row.grows_batch
    if grown is None or grown.batch_size == row.batch_size:
        return ""
    needs = (
        f", {grown.examples_factor:.2f} times the examples" if grown.is_examples_factor_known else " at best"
    )
    return f"{grown.batch_size:,.0f}: {told(grown.result_s)}{needs}"


def _stays(row: OfferRow) -> str:
    same = row.same_batch
    if same is None or same.batch_size == row.batch_size:
        return ""
    return f"{same.batch_size:,.0f}: {told(same.result_s)}{' as a range' if same.is_range else ''}"


def _hours(row: OfferRow) -> str:
    hours = amount_between(row.gpu_hours, row.gpu_hours_low, row.gpu_hours_high)
    return hours + (" *" if row.is_pareto else "")


def _price(row: OfferRow) -> str:
    if row.cost is None:
        return ""
    return amount_between(row.cost, row.cost_low or row.cost, row.cost_high or row.cost)


_COLUMNS = (
    ("", lambda row: "range" if row.is_range else row.kind),
    ("step", lambda row: step_told(row.step_s, row.low_s, row.high_s)),
    ("speedup", lambda row: _around(row.speedup, row.speedup_low, row.speedup_high)),
    ("efficiency", lambda row: percent_between(row.efficiency, row.efficiency_low, row.efficiency_high)),
    ("training", lambda row: told_between(row.train_s, row.train_low_s, row.train_high_s)),
    ("wait", lambda row: told(row.wait_s) if row.wait_high_s else ""),
    ("start", lambda row: told(row.start_s) if row.start_s else ""),
    ("result", lambda row: told(row.result_s)),
    ("90 %", lambda row: told(row.result_high_s)),
    ("GPU-hours", _hours),
    ("price", _price),
    ("batch that grows", _grown),
    ("batch that stays", _stays),
)


def _exchange(row: SimulatedRow) -> str:
    return percent(row.parts.get("exchange not hidden", 0.0) / row.low_s)


_SIMULATED = (
    ("nodes", lambda row: f"{row.nodes:,}"),
    ("step", lambda row: best_to_worst(seconds, row.low_s, row.high_s)),
    ("speedup", lambda row: best_to_worst("{:.2f}".format, row.speedup, row.speedup_low)),
    ("training", lambda row: best_to_worst(told, row.train_s, row.train_high_s)),
    ("exchange not hidden, at best", _exchange),
)


def _around(value: float, low: float, high: float) -> str:
    low_text, high_text = f"{low:.2f}", f"{high:.2f}"
    return f"{value:.2f}" + (f" ({low_text}–{high_text})" if low_text != high_text else "")


SECTION = Section(name="advice", title="How many GPUs to ask for", short="Advice", values=_values)
