"""What surviving costs: the time until a run that lost a rank goes on, and what a save adds to the steps."""

import signal
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median as middle

import torch
from torch import nn

from benchmarks import models, trainings
from benchmarks.faults.attempt import Attempt
from benchmarks.faults.training import FIRST_STEPS
from benchmarks.measure import median
from benchmarks.processes import call
from benchmarks.rows import Row
from samestep import Task, run, supervised
from samestep.hooks import Hook
from samestep.train.training import Training

_EVERY = 30
"""Steps between saves; the first half of them has a save beside it, the second half has none."""


def restart_row(*, rounds: int) -> Row:
    """From the kill of a rank to the first new step, against the command's start to the first of all."""
    cold_s, again_s = zip(*(_restart() for _ in range(rounds)), strict=True)
    ratios = [again / cold for again, cold in zip(again_s, cold_s, strict=True)]
    return Row(
        what="2 ranks: a killed rank to the next step, against a start",
        unit="s",
        ours=middle(again_s),
        theirs=middle(cold_s),
        figure=median(ratios),
        figure_unit="of a cold start",
        required=2.0,
    )


def _restart() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder, "marks")
        began = time.monotonic()
        attempt = Attempt(
            Path(folder, "run"), "--restarts", "2", gpus="2", env={FIRST_STEPS: str(marks)}
        )  # fmt: skip
        try:
            attempt.wait_until(lambda: marks.exists() and bool(attempt.checkpoints()))
            killed = time.monotonic()
            assert attempt.signal(attempt.ranks()[-1].pid, signal.SIGKILL)
            assert attempt.wait() == 0, attempt.said
        finally:
            attempt.end()
        first, again = map(float, marks.read_text().split())
        return first - began, again - killed


def save_row(*, quick: bool) -> Row:
    """How much longer steps take beside a save than without one, in steps."""
    step_s, delays, megabytes = call(_saves, quick)
    return Row(
        what=f"1 rank: what a save of {megabytes:.0f} MB adds",
        unit="ms",
        ours=step_s * 1e3 * (1 + middle(delays) / (_EVERY // 2)),
        theirs=step_s * 1e3,
        figure=median(delays),
        figure_unit="steps",
        required=1.0,
        note="steps beside a save against those without; one thread for the steps, one for the save.",
    )


class _Times(Hook):
    """The time after each step."""

    def __init__(self) -> None:
        self.after: list[float] = []

    def after_step(self, training: Training) -> None:
        self.after.append(time.perf_counter())


def _saves(quick: bool) -> tuple[float, list[float], float]:
    """Seconds a step without a save, the delay of each save in steps, and the megabytes of one."""
    torch.set_num_threads(1)
    widths = (64, 128, 10) if quick else (1024, 2048, 512, 10)
    times = _Times()
    task = Task(
        model=lambda: models.mlp(*widths),
        train_data=trainings.Examples(128, widths[:1], 10),
        loss=supervised(nn.CrossEntropyLoss()),
        optimizer=torch.optim.AdamW,
        batch_size=128,
        steps=_EVERY * (3 if quick else 25) + 1,
        checkpoint_every=_EVERY,
        hooks=(times,),
    )
    with tempfile.TemporaryDirectory() as folder:
        run(task, out=folder)
        newest = max(Path(folder, "checkpoints").glob("step-*"))
        size = sum(file.stat().st_size for file in newest.iterdir())
    seconds = [after - before for before, after in pairwise(times.after)]
    # `seconds[n]` is of the step after step n + 1; the first stretch is warm-up and has no save before it
    half = _EVERY // 2
    stretches = [seconds[start - 1 : start - 1 + _EVERY] for start in range(_EVERY, len(seconds), _EVERY)]
    stretches = [stretch for stretch in stretches if len(stretch) == _EVERY]
    alone = [middle(stretch[half:]) for stretch in stretches]
    delays = [
        (sum(stretch[:half]) - sum(stretch[half:])) / step
        for stretch, step in zip(stretches, alone, strict=True)
    ]
    return middle(alone), delays, size / 1e6
