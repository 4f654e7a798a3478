"""`python -m benchmarks.simulate_here [--quick] [--json FILE]`: simulated steps of two ranks on this machine.

Two trainings, one that mostly computes and one that mostly exchanges, are swept by `samestep scale` on 1 and
2 ranks, and the link between two ranks is timed by itself, with sums of two sizes by the way that gradients
take. What goes into the simulation is the step of 2 ranks that exchange nothing (a variant of the sweep, so
with what they take from each other's cores and memory) and the link; what comes out is the step with its
exchange, from all of it hidden to none. The measured step is to lie in between, give or take what it is not
known better than.
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
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.models import cnn, mlp
from benchmarks.processes import call_on_ranks
from benchmarks.trainings import Examples
from samestep import Task
from samestep.advise.cluster import Cluster, Link
from samestep.advise.hardware import gradient_bytes_in
from samestep.advise.simulate import Step, simulate
from samestep.advise.worst_case import at_worst
from samestep.losses import supervised
from samestep.scale.estimates import Estimates
from samestep.scale.folder import SweepFolder
from samestep.scale.variants import Kind, Variant
from samestep.world import World, join

_ROOT = Path(__file__).parent.parent
_BATCH_SIZE = 64
_EPOCHS = 10_000
_COMPARED: tuple[Kind, Kind] = ("full", "silent")
_SMALL_BYTES, _LARGE_BYTES = 4 * 2**10, 8 * 2**20
_NUM_TIMED = 200
_WORK_S = 0.01


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
    """A link between two ranks, by sums of two sizes. A ring of two: S / rate + 2 latencies."""

    latency_s: float
    bytes_per_s: float

    def cluster(self) -> Cluster:
        """Two ranks that are joined by it; what it reaches is measured."""
        link = Link(bytes_per_s=self.bytes_per_s, latency_s=min(self.latency_s, 0.1), achieved=0.999)
        return Cluster(name="two ranks here", gpus_per_node=2, inside=link)


@dataclass(frozen=True, kw_only=True)
class Links:
    """The link when ranks have nothing else to do, at its quickest, and as they find it who come from work.

    Then they wait for each other, and for the threads that carry messages, on no more cores than ranks.
    """

    idle: Timed
    busy: Timed


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

    def simulated_s(self, links: Links) -> tuple[float, float]:
        """At best and at worst."""
        step = Step(compute_s=self.silent_s, gradient_bytes=self.gradient_bytes)
        best = simulate(step, links.idle.cluster(), 2)
        return best.step_s, simulate(*at_worst(step, links.busy.cluster()), 2).step_s

    def is_held(self, links: Links) -> bool:
        low_s, high_s = self.simulated_s(links)
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


def timed_links() -> Links:
    """The link between two ranks here."""
    small_s, large_s, small_busy_s, large_busy_s = call_on_ranks(2, _summed_s)[0]
    idle_s, busy_s = float(np.min(small_s)), float(np.mean(small_busy_s))
    return Links(
        idle=Timed(
            latency_s=idle_s / 2, bytes_per_s=_LARGE_BYTES / max(float(np.min(large_s)) - idle_s, 1e-9)
        ),
        # a wait for the other rank may be in either sum, so it is taken off neither
        busy=Timed(latency_s=busy_s / 2, bytes_per_s=_LARGE_BYTES / float(np.mean(large_busy_s))),
    )


def _summed_s() -> list[list[float]]:
    torch.set_num_threads(1)
    world = World(*join())
    tensors = [torch.zeros(num_bytes // 4) for num_bytes in (_SMALL_BYTES, _LARGE_BYTES)]
    found = [_times(world, tensor, is_busy=is_busy) for is_busy in (False, True) for tensor in tensors]
    world.close()
    return found


def _times(world: World, tensor: Tensor, *, is_busy: bool) -> list[float]:
    """Of sums; both ranks begin at once, or after the same work."""
    found, factor = [], torch.ones(256, 256)
    for _ in range(_NUM_TIMED):
        world.any(False)
        began = time.perf_counter()
        while is_busy and time.perf_counter() - began < _WORK_S:
            factor @ factor
        began = time.perf_counter()
        world.sum_(tensor, of_gradients=True).wait()
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
    links = timed_links()
    table = Table("training", "gradients", "no exchange", "simulated", "measured", "in between")
    rows = [swept(what, quick=arguments.quick) for what in WORKLOADS]
    for row in rows:
        low_s, high_s = row.simulated_s(links)
        table.add_row(
            row.what, f"{row.gradient_bytes / 1e6:.1f} MB", f"{row.silent_s * 1e3:.1f} ms",
            f"{low_s * 1e3:.1f}–{high_s * 1e3:.1f} ms",
            f"{row.measured_s * 1e3:.1f} ms (×{row.ratio_low:.2f}–{row.ratio_high:.2f} of no exchange)",
            "yes" if row.is_held(links) else "NO",
        )  # fmt: skip
    console = Console(width=150)
    for what, link in (("idle", links.idle), ("from work", links.busy)):
        rate, latency = f"{link.bytes_per_s / 1e9:.2f} GB/s", f"{link.latency_s * 1e6:.0f} µs"
        console.print(f"two ranks here, {what}: {rate}, {latency} a message")
    console.print(table)
    if arguments.json is not None:
        figures = {
            "links": asdict(links),
            "rows": [asdict(row) | {"held": row.is_held(links)} for row in rows],
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
