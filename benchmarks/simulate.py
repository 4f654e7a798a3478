"""`python -m benchmarks.simulate scaling.csv`: simulated steps against published series on several nodes.

The table is public figures, one row a number of GPUs (columns: series_id, source, model, hardware, n_gpus,
n_nodes, batch_per_gpu, accum_steps, metric, value, note). Only series are used whose model (so the bytes of
its gradients, 4 a parameter) and machines are known. Nothing is fitted but the compute time, from one cell:

    unchanged       the step on several nodes is that of the largest number of GPUs in one node: no model
    from 1 GPU      simulated, compute from one GPU
    from 1 node     simulated, compute from the largest number of GPUs in one node
    no overlap      as before, but all gradients are sent after backward, as some of these programs do
    and 1 cell      as `from 1 node`, and `achieved` of the network from the smallest number of nodes

Errors are of the step time on several nodes, simulated over measured; of `and 1 cell`, on more nodes yet.
`held` is the part of the cells that lie, give or take 2.5 %, between `from 1 node` and the worst case of
`samestep advise --cluster`: nothing hidden, links at a tenth of their peak, and computing that takes all of
the step in one node. `width` is the one over the other, the median. `all` is without what was tried after.

That tenth was chosen with these series in view: of a few round parts, the most with which four of five cells
of every source are held. The second table chooses it anew for each source by the others alone, and tells how
many cells it then holds there. Every source has to be held, since the next machine is of none of them: who
asks for four of five cells of all takes a fifth where Pollux is left out, and then holds 28 % of it.

The network of the Pollux nodes is not published beyond its peak. 5 Gb/s, what AWS gives to one connection,
was tried after the peak had failed: those rows explain, they do not predict.
"""

import argparse
import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.table import Table

from samestep.advise.cluster import Cluster, read_cluster
from samestep.advise.simulate import Bucket, Step, simulate
from samestep.advise.worst_case import LEAST_ACHIEVED, at_worst

_BYTES_PER_PARAMETER = 4
_METHODS = ("unchanged", "from 1 GPU", "from 1 node", "no overlap", "and 1 cell")
_AFTERWARDS = "one 5 Gb/s flow"
_REPEATS_DIFFER = 0.025
"""What most repeats on like machines in the table differ by."""
PARTS = (0.5, 0.2, 0.1, 0.05, 0.02)
"""Of its peak, that a link may reach at worst: what there is to choose from."""
_DUE = 0.8

Held = Mapping[str, Mapping[float, Sequence[bool]]]
"""By source and part, whether each cell lies between best and worst."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Series that are the same training on the same machines."""

    what: str
    source: str
    model: str
    hardware: str
    parameters: float
    cluster: Cluster

    def has(self, row: dict[str, str]) -> bool:
        return (
            row["source"].startswith(self.source)
            and re.search(self.model, row["model"]) is not None
            and re.search(self.hardware, row["hardware"]) is not None
            and not row["note"].startswith("suspect")
        )


@dataclass(frozen=True, kw_only=True)
class _Cell:
    gpus: int
    nodes: int
    accumulated: int
    step_s: float


def _jobs() -> list[_Job]:
    v100 = read_cluster("dgx-1-v100")
    assert v100.between is not None
    # the servers of DLPerf have one adapter: its reports print `nvidia-smi topo -m`
    dlperf = v100.model_copy(update={"between": v100.between.model_copy(update={"links_per_node": 1})})
    peak, flow = read_cluster("aws-g4dn-12xlarge"), read_cluster("aws-g4dn-12xlarge-tcp")
    jobs: list[tuple[str, str, str, str, float, Cluster | str]] = [
        ("DLPerf, ResNet-50", "Oneflow", r"(?i)resnet50|RN50", "V100", 25.6e6, dlperf),
        ("DLPerf, BERT base", "Oneflow", r"(?i)bert", "V100", 110e6, dlperf),
        ("NVIDIA, BERT large, DGX A100", "NVIDIA", "PaddlePaddle.*BERT", "Multi-node", 336e6, "dgx-a100"),
        ("NVIDIA, BERT large, DGX-1", "NVIDIA", r"^TensorFlow/Lang\w+/BERT \[", "DGX-1", 336e6, "dgx-1-v100"),
        ("NVIDIA, BERT large, DGX-2", "NVIDIA", r"^TensorFlow/Lang\w+/BERT \[", "DGX-2", 336e6, "dgx-2"),
        ("Sia, YOLOv3, DGX A100", "siasosp23", "^yolov3", "Sia dgx", 62e6, "dgx-a100"),
    ]
    for net, cluster in (("50 Gb/s", peak), (_AFTERWARDS, flow)):
        for where, machines in (("packed", cluster), ("spread", _spread(cluster))):
            for model, parameters in (("bert", 110e6), ("yolov3", 62e6), ("cifar10", 11.2e6)):
                name = f"Pollux, {model} {where}, {net}"
                jobs.append((name, "petuum", rf"^{model} \({where}", "T4", parameters, machines))
    return [
        _Job(
            what=what, source=source, model=model, hardware=hardware, parameters=parameters,
            cluster=read_cluster(cluster) if isinstance(cluster, str) else cluster,
        )
        for what, source, model, hardware, parameters, cluster in jobs
    ]  # fmt: skip


def _spread(cluster: Cluster) -> Cluster:
    """The same machines with one GPU used on each."""
    return cluster.model_copy(update={"gpus_per_node": 1, "inside": None})


def _cells(rows: Sequence[dict[str, str]], cluster: Cluster) -> list[_Cell]:
    cells = []
    for row in rows:
        gpus, accumulated = int(row["n_gpus"]), int(row["accum_steps"] or 1)
        examples = float(row["batch_per_gpu"] or math.nan) * gpus * accumulated
        step_s = float(row["value"]) if row["metric"] == "time_s" else examples / float(row["value"])
        nodes = int(row["n_nodes"] or -(-gpus // cluster.gpus_per_node))
        cells.append(_Cell(gpus=gpus, nodes=nodes, accumulated=accumulated, step_s=step_s))
    return sorted((cell for cell in cells if math.isfinite(cell.step_s)), key=lambda cell: cell.gpus)


def _simulated_s(job: _Job, cell: _Cell, batch_s: float, cluster: Cluster, *, overlap: bool = True) -> float:
    """The step of a cell in which one batch takes `batch_s` to compute; the last one's gradients are sent."""
    step = _step(job, cell, batch_s)
    if not overlap:
        step = replace(step, buckets=(Bucket(num_bytes=step.gradient_bytes, ready=1.0),))
    return simulate(step, cluster, cell.gpus).step_s


def _step(job: _Job, cell: _Cell, batch_s: float) -> Step:
    return Step(
        compute_s=batch_s * cell.accumulated,
        backward_share=2 / 3 / cell.accumulated,
        gradient_bytes=job.parameters * _BYTES_PER_PARAMETER,
    )


def _batch_s(job: _Job, cell: _Cell, *, overlap: bool = True) -> float:
    """The compute time with which the simulation gives what was measured."""

    def excess_s(batch_s: float) -> float:
        return _simulated_s(job, cell, batch_s, job.cluster, overlap=overlap) - cell.step_s

    # a step of no time at all cannot be simulated
    return _solved(excess_s, 1e-6 * cell.step_s, cell.step_s / cell.accumulated)


def _solved(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function passes 0, or the nearer end."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return high


def _achieved(job: _Job, cell: _Cell, batch_s: float) -> Cluster:
    """The cluster whose network reaches what makes the simulation of this cell right."""
    between = job.cluster.between
    assert between is not None

    def with_share(share: float) -> Cluster:
        return job.cluster.model_copy(update={"between": between.model_copy(update={"achieved": share})})

    return with_share(
        _solved(lambda share: cell.step_s - _simulated_s(job, cell, batch_s, with_share(share)), 1e-3, 1.0)
    )


def _errors(job: _Job, cells: Sequence[_Cell]) -> dict[str, list[float]]:
    """Of each method, simulated over measured less 1, on every cell of several nodes that it did not see."""
    inside, outside = [c for c in cells if c.nodes == 1], [c for c in cells if c.nodes > 1]
    if not inside or not outside:
        return {}
    first, last = inside[0], inside[-1]
    first_s, last_s = _batch_s(job, first), _batch_s(job, last)
    bare_s = _batch_s(job, last, overlap=False)
    tuned = _achieved(job, outside[0], last_s)
    errors = {
        "unchanged": [last.step_s * c.accumulated / last.accumulated / c.step_s - 1 for c in outside],
        "from 1 node": [_simulated_s(job, c, last_s, job.cluster) / c.step_s - 1 for c in outside],
        "no overlap": [
            _simulated_s(job, c, bare_s, job.cluster, overlap=False) / c.step_s - 1 for c in outside
        ],
        "worst": _worst_errors(job, last, outside),
        "and 1 cell": [_simulated_s(job, c, last_s, tuned) / c.step_s - 1 for c in outside[1:]],
    }
    if first.gpus == 1:
        errors["from 1 GPU"] = [_simulated_s(job, c, first_s, job.cluster) / c.step_s - 1 for c in outside]
    return errors


def _worst_errors(
    job: _Job, last: _Cell, outside: Sequence[_Cell], achieved: float = LEAST_ACHIEVED
) -> list[float]:
    """Of the worst case, with links that reach so much of their peak; computing is all of one node's step."""
    batch_s = last.step_s / last.accumulated
    return [
        simulate(*at_worst(_step(job, c, batch_s), job.cluster, achieved), c.gpus).step_s / c.step_s - 1
        for c in outside
    ]


def held_by_part(path: Path) -> Held:
    """What links at each of the parts would hold of the series in a table."""
    rows = _rows(path)
    found: dict[str, dict[float, list[bool]]] = {}
    for job in _jobs():
        if _AFTERWARDS in job.what:
            continue
        for cells in _series(job, rows):
            inside, outside = [c for c in cells if c.nodes == 1], [c for c in cells if c.nodes > 1]
            if not inside or not outside:
                continue
            batch_s = _batch_s(job, inside[-1])
            best = [_simulated_s(job, c, batch_s, job.cluster) / c.step_s - 1 for c in outside]
            for part in PARTS:
                worst = _worst_errors(job, inside[-1], outside, part)
                by_part = found.setdefault(job.source, {each: [] for each in PARTS})
                by_part[part] += _is_between(best, worst).tolist()
    return found


def chosen_part(held: Held) -> float:
    """The most that still holds four of five cells of every source; the least if none does."""
    enough = [part for part in PARTS if all(np.mean(cells[part]) >= _DUE for cells in held.values())]
    return max(enough, default=min(PARTS))


def choice(held: Held) -> Table:
    """The part as each source's others choose it, and what it holds of that source."""
    table = Table("source", "cells", "part chosen without it", "held", title_justify="left")
    table.title = "simulate: what links reach at worst, chosen for each source by the others"
    all_held: list[bool] = []
    for source, cells in held.items():
        part = chosen_part({other: of_other for other, of_other in held.items() if other != source})
        all_held += cells[part]
        table.add_row(source, str(len(cells[part])), f"{part:g}", f"{np.mean(cells[part]):.0%}")
    if all_held:
        on_all = f"{chosen_part(held):g} by all"
        table.add_row("every source", str(len(all_held)), on_all, f"{np.mean(all_held):.0%}")
    return table


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _series(job: _Job, rows: Sequence[dict[str, str]]) -> list[list[_Cell]]:
    """The cells of each series that is this job."""
    series = defaultdict(list)
    for row in filter(job.has, rows):
        series[row["series_id"]].append(row)
    return [_cells(members, job.cluster) for members in series.values()]


def run(path: Path) -> Table:
    """The errors of every job, as a table."""
    rows = _rows(path)
    title = "simulate: error of the step time on several nodes in %, median / 90th percentile (bias)"
    table = Table("series", "number", "cells", *_METHODS, "held", "width", title=title, title_justify="left")
    total: dict[str, list[float]] = defaultdict(list)
    for job in _jobs():
        pooled: dict[str, list[float]] = defaultdict(list)
        num_series = 0
        for cells in _series(job, rows):
            errors = _errors(job, cells)
            num_series += bool(errors)
            for method, values in errors.items():
                pooled[method] += values
        texts = [_text(pooled[method]) for method in _METHODS]
        table.add_row(job.what, str(num_series), str(len(pooled["unchanged"])), *texts, *_held(pooled))
        for method in pooled if _AFTERWARDS not in job.what else ():
            total[method] += pooled[method]
    texts = [_text(total[method]) for method in _METHODS]
    table.add_row("all", "", str(len(total["unchanged"])), *texts, *_held(total))
    return table


def _held(errors: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    """How often the measured time, error 0, is between best and worst, and how far these are apart."""
    low, high = np.array(errors.get("from 1 node", [])), np.array(errors.get("worst", []))
    if not len(low):
        return "–", "–"
    return f"{_is_between(low, high).mean():.0%}", f"×{np.median((1 + high) / (1 + low)):.2f}"


def _is_between(low: ArrayLike, high: ArrayLike) -> NDArray[np.bool_]:
    """Whether what was measured, error 0, is between the errors of best and worst."""
    return (np.asarray(low) <= _REPEATS_DIFFER) & (np.asarray(high) >= -_REPEATS_DIFFER)


def _text(errors: Sequence[float]) -> str:
    if not errors:
        return "–"
    percent = 100 * np.array(errors)
    size = np.abs(percent)
    return f"{np.median(size):.1f} / {np.quantile(size, 0.9):.0f} ({np.median(percent):+.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=run.__doc__)
    parser.add_argument("table", type=Path, help="public figures, as CSV")
    path, console = parser.parse_args().table, Console(width=190)
    console.print(run(path))
    console.print(choice(held_by_part(path)))


if __name__ == "__main__":
    main()
