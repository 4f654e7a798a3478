"""`python -m benchmarks.simulate_here [--quick] [--json FILE]`: simulated steps of two ranks on this machine.

Two trainings, one that mostly computes and one that mostly exchanges, are swept by `samestep scale` on 1 and
2 ranks, and the link between two ranks is timed by itself, with all-reduces of two sizes. What goes into the
simulation is the step of 2 ranks that exchange nothing (a variant of the sweep, so with what they take from
each other's cores and memory) and the link; what comes out is the step with its exchange, from all of it
hidden to none. The measured step is to lie in between, give or take what it is not known better than.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim import SGD

from benchmarks.processes import call_on_ranks
from benchmarks.trainings import Examples, cnn, mlp
from samestep import Task
from samestep.advise.cluster import Cluster, Link
from samestep.advise.hardware import gradient_bytes_in
from samestep.advise.simulate import Step, simulate
from samestep.advise.worst_case import at_worst
from samestep.losses import supervised
from samestep.scale.estimates import Estimates
from samestep.scale.folder import SweepFolder
from samestep.scale.variants import Kind, Variant

_ROOT = Path(__file__).parent.parent
_BATCH_SIZE = 64
_EPOCHS = 10_000
_COMPARED: tuple[Kind, Kind] = ("full", "silent")
_SMALL_BYTES, _LARGE_BYTES = 4 * 2**10, 8 * 2**20
_NUM_TIMED = 40


def _task(model: Any, shape: tuple[int, ...]) -> Task:
    return Task(
        model=model,
        train_data=partial(Examples, _BATCH_SIZE, shape, 10),
        loss=supervised(nn.CrossEntropyLoss()),
        optimizer=partial(SGD, lr=1e-3),
        batch_size=_BATCH_SIZE,
        epochs=_EPOCHS,
    )


computing = _task(partial(cnn, batch_norm=False), (3, 32, 32))
exchanging = _task(partial(mlp, 512, 2048, 2048, 10), (512,))
WORKLOADS = ("computing", "exchanging")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A link between two ranks: seconds of all-reduces of two sizes, the quickest and the usual."""

    latency_s: float
    quickest_bytes_per_s: float
    usual_bytes_per_s: float

    def cluster(self) -> Cluster:
        """Two ranks that are joined by it; what it usually reaches counts as measured."""
        achieved = min(self.usual_bytes_per_s / self.quickest_bytes_per_s, 0.999)
        link = Link(
            bytes_per_s=self.quickest_bytes_per_s, latency_s=min(self.latency_s, 0.1), achieved=achieved
        )
        return Cluster(name="two ranks here", gpus_per_node=2, inside=link)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A workload: its step on two ranks as it was measured, and simulated from the step without exchange.

    Both steps are of the same rounds, so that what the machine did meanwhile is in both: `ratio_low` and
    `ratio_high` are the interval (95 %) of the one over the other.
    """

    what: str
    gradient_bytes: float
    silent_s: float
    measured_s: float
    ratio_low: float
    ratio_high: float

    def simulated_s(self, link: Timed) -> tuple[float, float]:
        """At best and at worst."""
        step, cluster = Step(compute_s=self.silent_s, gradient_bytes=self.gradient_bytes), link.cluster()
        return simulate(step, cluster, 2).step_s, simulate(*at_worst(step, cluster), 2).step_s

    def is_held(self, link: Timed) -> bool:
        low_s, high_s = self.simulated_s(link)
        return low_s <= self.ratio_high * self.silent_s and self.ratio_low * self.silent_s <= high_s


def compared(what: str, folder: Path) -> Compared:
    """From the folder of a sweep on 1 and 2 ranks."""
    estimates = Estimates(SweepFolder(folder).runs, seed=0)
    full, silent = (Variant(gpus=2, batch_size=_BATCH_SIZE, kind=kind) for kind in _COMPARED)
    ratio = estimates.value(full) / estimates.value(silent)
    around = estimates.around(estimates.draws(full) / estimates.draws(silent), ratio)
    return Compared(
        what=what,
        gradient_bytes=gradient_bytes_in([folder]),
        silent_s=estimates.value(silent),
        measured_s=estimates.value(full),
        ratio_low=around.low,
        ratio_high=around.high,
    )


def timed_link() -> Timed:
    """The link between two ranks, with nothing else to do. A ring of two: S / rate + 2 latencies."""
    small_s, large_s = call_on_ranks(2, _reduced_s)[0]
    latency_s = float(np.median(small_s)) / 2
    rates = [_LARGE_BYTES / max(float(each) - 2 * latency_s, 1e-9) for each in large_s]
    return Timed(
        latency_s=latency_s,
        quickest_bytes_per_s=max(rates),
        usual_bytes_per_s=float(np.median(rates)),
    )


def _reduced_s() -> tuple[list[float], list[float]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = tuple(_times(num_bytes) for num_bytes in (_SMALL_BYTES, _LARGE_BYTES))
    dist.destroy_process_group()
    return found[0], found[1]


def _times(num_bytes: int) -> list[float]:
    tensor, found = torch.zeros(num_bytes // 4), []
    for _ in range(_NUM_TIMED):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        found.append(time.perf_counter() - began)
    return found[_NUM_TIMED // 4 :]


def swept(what: str, *, quick: bool) -> Compared:
    """A workload by `samestep scale`."""
    length = ["--rounds", "3", "--seconds", "0.2"] if quick else ["--budget", "90s"]
    with TemporaryDirectory() as folder:
        out = f"{folder}/sweep"
        done = subprocess.run(
            [sys.executable, "-m", "samestep", "scale", "--gpus", "1,2", "--threads", "1", "--out", out,
             *length, f"benchmarks.simulate_here:{what}"],
            cwd=_ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise RuntimeError(f"samestep scale ended with {done.returncode}: {done.stderr[-2000:]}")
        return compared(what, Path(out))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_here", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter sweeps, with wider intervals")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    link = timed_link()
    table = Table("training", "gradients", "no exchange", "simulated", "measured", "in between")
    rows = [swept(what, quick=arguments.quick) for what in WORKLOADS]
    for row in rows:
        low_s, high_s = row.simulated_s(link)
        table.add_row(
            row.what, f"{row.gradient_bytes / 1e6:.1f} MB", f"{row.silent_s * 1e3:.1f} ms",
            f"{low_s * 1e3:.1f}–{high_s * 1e3:.1f} ms",
            f"{row.measured_s * 1e3:.1f} ms (×{row.ratio_low:.2f}–{row.ratio_high:.2f} of no exchange)",
            "yes" if row.is_held(link) else "NO",
        )  # fmt: skip
    console = Console(width=150)
    console.print(
        f"two ranks here: {link.usual_bytes_per_s / 1e9:.2f} GB/s, {link.latency_s * 1e6:.0f} µs a message"
    )
    console.print(table)
    if arguments.json is not None:
        figures = {"link": asdict(link), "rows": [asdict(row) | {"held": row.is_held(link)} for row in rows]}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
