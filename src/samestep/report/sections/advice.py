"""How many GPUs to ask for: the advice in words, its table, and four pictures of it."""

from collections.abc import Mapping
from typing import Any

from samestep.advise.words import gpus as told_gpus
from samestep.advise.words import told
from samestep.report import advice_drawings as drawings
from samestep.report import advice_table as table
from samestep.report.advised import Advised, ClusterRow, read_advised
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
    columns = table.columns(advised)
    known = {(found.cause, found.message) for found in material.findings}
    return {
        "old": "",
        "reason": advised.reason,
        "batch": _BATCH[advised.batch],
        "titles": [name for name, _ in columns],
        "rows": [
            (row.gpus == asked, [texts[place].rstrip() for _, texts in columns])
            for place, row in enumerate(rows)
        ],
        "legend": table.legend(advised, columns),
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
    columns = table.simulated_columns(cluster)
    return {
        "name": cluster.name,
        "titles": [name for name, _ in columns],
        "rows": list(zip(*(texts for _, texts in columns), strict=True)),
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


SECTION = Section(name="advice", title="How many GPUs to ask for", short="Advice", values=_values)
