"""Samestep measured by its own `samestep scale`: one training as a task, and as a script written by hand.

The two sweeps follow each other, so that the machine may have changed in between: the interval of their ratio
goes from the worst of one and the best of the other to the opposite. The benchmark `ddp` compares closer.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import Estimate
from benchmarks.rows import Row
from benchmarks.scaled import BATCH_SIZE

TITLE = "scaling: a CNN as a task and as a DDP script, each by `samestep scale`, one thread a rank"

_ROOT = Path(__file__).parent.parent
_OURS = ("benchmarks.scaled:task",)
_THEIRS = ("--", sys.executable, "-m", "benchmarks.scaled")


def run(*, quick: bool) -> list[Row]:
    ours, theirs = (_sweep(target, quick=quick) for target in (_OURS, _THEIRS))
    return [
        Row(
            what=f"step on {mine['gpus']} rank{'s' * (mine['gpus'] > 1)}, batch {BATCH_SIZE}",
            unit="ms",
            ours=mine["step_s"] * 1e3,
            theirs=other["step_s"] * 1e3,
            figure=Estimate(
                value=other["step_s"] / mine["step_s"],
                low=other["step_low_s"] / mine["step_high_s"],
                high=other["step_high_s"] / mine["step_low_s"],
            ),
            figure_unit="of their throughput",
            note=_note(mine, other),
        )
        for mine, other in zip(ours["cells"], theirs["cells"], strict=True)
    ]


def _note(mine: dict[str, Any], other: dict[str, Any]) -> str:
    if mine["gpus"] == 1:
        return ""
    return (
        f"speedup {mine['speedup']:.2f} ({mine['speedup_low']:.2f} … {mine['speedup_high']:.2f}) as a task, "
        f"{other['speedup']:.2f} ({other['speedup_low']:.2f} … {other['speedup_high']:.2f}) by hand."
    )


def _sweep(target: tuple[str, ...], *, quick: bool) -> dict[str, Any]:
    length = ["--rounds", "1", "--seconds", "0.1"] if quick else ["--budget", "2m"]
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "samestep", "scale", "--gpus", "1,2", "--threads", "1", "--json",
             "--out", f"{folder}/sweep", *length, *target],
            cwd=_ROOT, stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(f"samestep scale ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
