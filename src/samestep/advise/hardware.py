"""Hardware: the step of a measured job on a cluster that was not measured, by simulation.

The GPUs are taken to be those that were measured; the links are those of the spec. Computing of m examples on
one GPU is a + b·m, from the step on one GPU and, where a sweep told it, from what a smaller batch costs. Rows
are simulated, neither measured nor projected: at best, and at worst (`worst_case`, and all that was lost on
more GPUs where they were measured is computing, which no link makes quicker).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from samestep.advise.cluster import Cluster
from samestep.advise.context import Context
from samestep.advise.offers import Offer
from samestep.advise.places import Floats
from samestep.advise.simulate import Simulated, Step, simulate
from samestep.advise.words import percent
from samestep.advise.worst_case import LEAST_ACHIEVED, at_worst
from samestep.errors import ConfigError, RecordError
from samestep.observations import Observations
from samestep.observed import Model

FLOAT_BYTES = 4
_TENSOR = re.compile(r"(?:^|.* )(\w+) \(([\d, ]*)\) gradient")
_BITS = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """A job on a cluster, at each number of GPUs."""

    cluster: Cluster
    gradient_bytes: float
    rows: tuple[Simulated, ...]
    train_s: tuple[float, ...]
    """Steps, evaluation and checkpoints; the latter two as they were measured."""
    train_high_s: tuple[float, ...]
    speedups: tuple[float, ...]
    """Of examples a second, over the first row times its GPUs."""
    worst: tuple[Simulated, ...]
    """Of each row, what the step is at most; the row itself is what it is at least."""
    remarks: tuple[str, ...]

    @property
    def speedup_lows(self) -> tuple[float, ...]:
        """At worst, over one that is at its best."""
        known = zip(self.speedups, self.rows, self.worst, strict=True)
        return tuple(speedup * row.step_s / worst.step_s for speedup, row, worst in known)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.cluster.name,
            "sources": list(self.cluster.sources),
            "gradient_bytes": self.gradient_bytes,
            "remarks": list(self.remarks),
            "rows": [
                {
                    "gpus": row.gpus,
                    "kind": "simulated",
                    "nodes": row.num_nodes,
                    "step_s": row.step_s,
                    "low_s": row.step_s,
                    "high_s": worst.step_s,
                    "speedup": speedup,
                    "speedup_low": speedup_low,
                    "train_s": train_s,
                    "train_high_s": high_s,
                    "gpu_hours": row.gpus * train_s / 3600,
                    "parts": dict(row.parts),
                }
                for row, worst, speedup, speedup_low, train_s, high_s in zip(
                    self.rows,
                    self.worst,
                    self.speedups,
                    self.speedup_lows,
                    self.train_s,
                    self.train_high_s,
                    strict=True,
                )
            ],
        }


def on_cluster(
    cluster: Cluster, offers: Sequence[Offer], context: Context, gradient_bytes: float
) -> OnCluster:
    """The steps of these offers on other machines; the numbers of GPUs and the batches stay."""
    fit = [offer for offer in offers if cluster.between is not None or offer.gpus <= cluster.gpus_per_node]
    if not fit:
        raise ConfigError(
            f"{cluster.name} is one node with {cluster.gpus_per_node} GPUs, and the fewest that are asked "
            f"about are {offers[0].gpus}: say in the spec what joins nodes, or ask about fewer"
        )
    fixed_s, each_s, is_told = _computing(offers, context)
    lost_fixed_s, lost_each_s = _computing_at_most(offers)
    remarks = [
        "The advice itself is for the machine that was measured. Simulated with its GPUs: at best, with all "
        "of the exchange hidden that can be, on links at the rates of the spec; at worst, with nothing "
        f"hidden, on links at {percent(LEAST_ACHIEVED)} of those unless `achieved` says what they reach."
    ]
    if not is_told:
        remarks.append("What a smaller batch costs a GPU is not known: computing counts by its examples.")
    if len(fit) < len(offers):
        remarks.append(
            f"{cluster.name} is one node with {cluster.gpus_per_node} GPUs: more are left out; "
            "say in the spec what joins nodes."
        )
    rows, worst = [], []
    for offer in fit:
        examples = offer.batch_size / offer.gpus
        # one GPU exchanges nothing: what was measured on it needs no line
        is_known = offer.gpus == 1 and offer.kind == "measured"
        compute_s = offer.step_s if is_known else fixed_s + each_s * examples
        step = Step(
            compute_s=compute_s,
            gradient_bytes=gradient_bytes,
            backward_share=Step.backward_share / offer.turns,
            examples=examples,
        )
        rows.append(simulate(step, cluster, offer.gpus))
        lost_s = 0.0 if is_known else lost_fixed_s + lost_each_s * examples
        slow = replace(step, compute_s=max(compute_s, lost_s))
        worst.append(simulate(*at_worst(slow, cluster), offer.gpus))
    return OnCluster(
        cluster=cluster,
        gradient_bytes=gradient_bytes,
        rows=tuple(rows),
        worst=tuple(worst),
        train_s=_training(fit, rows),
        train_high_s=_training(fit, worst),
        speedups=tuple(
            fit[0].gpus * (rows[0].step_s / fit[0].batch_size) * (offer.batch_size / row.step_s)
            for offer, row in zip(fit, rows, strict=True)
        ),
        remarks=tuple(remarks),
    )


def _training(offers: Sequence[Offer], rows: Sequence[Simulated]) -> tuple[float, ...]:
    pairs = zip(offers, rows, strict=True)
    return tuple(offer.num_steps * row.step_s + offer.beside_s for offer, row in pairs)


def gradient_bytes_in(folders: Sequence[Path]) -> float:
    """The bytes of all gradients of a job, as a sweep saw its model."""
    for path in (look for folder in folders for look in sorted((folder / "looks").glob("*"))):
        try:
            seen = Observations.read(path)
        except RecordError:
            continue
        models = {row.model: row for row in seen.rows(seen.ranks[0]) if isinstance(row, Model)}
        if total := sum(num_bytes for row in models.values() for num_bytes in _gradients(row.tensors)):
            return float(total)
    raise ConfigError(
        "--cluster was given, but how large the model's gradients are is not known from these measurements; "
        "say it with --parameters, as in --parameters 25.6M."
    )


def parameters_of(text: str) -> float:
    """A number of parameters, such as 25600000, 25.6M or 7B."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMGB]?)", text.strip())
    count = float(found[1]) * _SIZES[found[2]] if found else 0.0
    if count < 1:
        raise ConfigError(f"--parameters is {text!r}; give how many the model has, as in 25.6M or 7B.")
    return count


_SIZES: Mapping[str, float] = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


def _gradients(tensors: Sequence[str]) -> Iterator[int]:
    for text in tensors:
        if found := _TENSOR.fullmatch(text):
            bits = _BITS.search(found[1])
            shape = [int(size) for size in found[2].replace(",", " ").split()]
            yield prod(shape) * (int(bits[0]) // 8 if bits else FLOAT_BYTES)


def _computing(offers: Sequence[Offer], context: Context) -> tuple[float, float, bool]:
    """The seconds of a step that no batch makes fewer, those of each example, and if the first are known."""
    first = offers[0]
    points = [(first.batch_size / first.gpus, first.step_s)]
    for bars in context.bars:
        smaller_s = sum(bar.seconds for bar in bars.bars if bar.name == "smaller batch")
        points.append((bars.batch_size / bars.gpus, bars.ideal_s + smaller_s))
    counts, seconds = np.array(points).T
    if np.ptp(counts) == 0 or seconds.min() <= 0:
        return 0.0, first.step_s * first.gpus / first.batch_size, False
    return *_line(counts, seconds), True


def _computing_at_most(offers: Sequence[Offer]) -> tuple[float, float]:
    """The same if all that was measured were computing: no measured step is above it."""
    measured = [offer for offer in offers if offer.kind == "measured"] or offers[:1]
    counts = np.array([offer.batch_size / offer.gpus for offer in measured])
    seconds = np.array([offer.step_s for offer in measured])
    fixed_s, each_s = _line(counts, seconds)
    above = float(np.max(seconds / (fixed_s + each_s * counts)))
    return above * fixed_s, above * each_s


def _line(counts: Floats, seconds: Floats) -> tuple[float, float]:
    """The line a + b·m of least relative squares, neither below 0."""
    if np.ptp(counts) == 0:
        return 0.0, float(np.mean(seconds / counts))
    found, _ = nnls(np.stack([1 / seconds, counts / seconds], axis=1), np.ones(len(counts)))
    return float(found[0]), float(found[1])
