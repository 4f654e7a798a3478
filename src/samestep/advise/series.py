"""Series: one job at several world sizes, and the public tables of such series.

Knows the columns of the tables that calibration and the benchmark read; judges nothing:

    series_id, source, model, hardware   rows of one series differ in the number of GPUs only
    n_gpus, n_nodes, accum_steps         nodes and turns may be empty
    metric, value, unit                  time_s of a step, or throughput of all GPUs, in examples/s or other
    batch_per_gpu                        may be empty; of one turn
    scaling                              weak (batch per GPU fixed), strong or strong(accum) (global batch)
    note                                 has the word "suspect" where the source doubts the figure
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samestep.advise.places import Floats, Places
from samestep.errors import ConfigError

_SMALL_NODE, _LARGE_NODE = 8, 16
_LARGE = ("DGX-2", "DGX2", "16x")
_EXAMPLES = ("image", "img", "item", "sample", "sentence", "sequence")
"""How units of throughput begin that count what a batch counts."""


@dataclass(frozen=True)
class Series:
    """Steps of one job in order of GPUs, each world size once."""

    name: str
    source: str
    model: str
    is_suspect: bool
    places: Places
    step_s: Floats
    is_in_seconds: bool = True
    """Whether `step_s` is; else nobody said how many examples a step has, and it is in a unit of its own."""

    @property
    def is_strong(self) -> bool:
        """Whether the global batch stays."""
        return not self.places.is_batch_fixed


@dataclass(frozen=True)
class Stack:
    """Series of one length, as arrays with an axis for them before that of their worlds."""

    places: Places
    step_s: Floats
    is_in_seconds: bool
    weights: Floats
    """A source counts by the root of its series."""

    @property
    def length(self) -> int:
        return int(self.step_s.shape[-1])

    @property
    def num_forecasts(self) -> float:
        """Of larger worlds from two cells or more."""
        return (self.length - 2) * (self.length - 1) / 2


def stacked(series: Sequence[Series]) -> list[Stack]:
    """Together those that are as long as each other; in seconds and not, apart."""
    sources = Counter(each.source for each in series)
    by_kind: dict[tuple[int, bool], list[Series]] = defaultdict(list)
    for each in series:
        by_kind[len(each.step_s), each.is_in_seconds].append(each)
    return [
        Stack(
            Places.stacked([each.places for each in alike]),
            np.stack([each.step_s for each in alike]),
            is_in_seconds,
            np.array([sources[each.source] ** -0.5 for each in alike]),
        )
        for (_, is_in_seconds), alike in by_kind.items()
    ]


def read_tables(path: Path) -> list[Series]:
    """Every series of three or more world sizes with a batch that follows one rule.

    Throughputs become times of a step, in seconds where it is known of how many examples. Of several figures
    for one world size the geometric mean is taken.
    """
    by_name: dict[str, list[dict[str, str]]] = defaultdict(list)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                by_name[row["series_id"]].append(row)
        found = [_series(name, rows) for name, rows in by_name.items() if _rule(rows) is not None]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is no table of scaling series ({error!r}); see its columns") from error
    return [series for series in found if len(series.step_s) > 2]


def _rule(rows: Sequence[dict[str, str]]) -> str | None:
    scaling = rows[0]["scaling"]
    return {"weak": "weak", "strong": "strong", "strong(accum)": "strong"}.get(scaling)


def _series(name: str, rows: Sequence[dict[str, str]]) -> Series:
    is_strong = _rule(rows) == "strong"
    times: dict[int, list[float]] = defaultdict(list)
    nodes: dict[int, int] = {}
    turns: dict[int, int] = {}
    for row in rows:
        gpus, value = int(row["n_gpus"]), float(row["value"])
        size = _LARGE_NODE if any(word in row["hardware"] for word in _LARGE) else _SMALL_NODE
        nodes.setdefault(gpus, int(row["n_nodes"] or -(-gpus // size)))
        turns.setdefault(gpus, int(row.get("accum_steps") or 1))
        seconds = value if row["metric"] == "time_s" else (1 if is_strong else gpus) / value
        times[gpus].append(seconds)
    gpus_in_order = sorted(times)
    least = gpus_in_order[0]
    examples = _examples(min(rows, key=lambda row: int(row["n_gpus"])))
    if examples is not None and is_strong:
        examples *= least * turns[least]
    return Series(
        name=name,
        source=rows[0]["source"],
        model=rows[0]["model"],
        is_suspect=any("suspect" in row["note"] for row in rows),
        places=Places.of(
            gpus_in_order,
            [nodes[gpus] for gpus in gpus_in_order],
            [least / gpus if is_strong else 1.0 for gpus in gpus_in_order],
            [turns[gpus] for gpus in gpus_in_order],
        ),
        step_s=(examples or 1.0)
        * np.array([float(np.exp(np.mean(np.log(times[gpus])))) for gpus in gpus_in_order]),
        is_in_seconds=examples is not None,
    )


def _examples(row: dict[str, str]) -> float | None:
    """What a GPU has at once, in the unit of the throughput; 1 for times; None if nobody said it."""
    unit = row.get("unit", "").lower()
    if row["metric"] == "time_s" or unit.startswith("steps/s"):
        return 1.0
    is_known = unit.startswith(_EXAMPLES) and unit.replace(" ", "").endswith(("/s", "/sec"))
    return float(row["batch_per_gpu"]) if is_known and row.get("batch_per_gpu") else None
