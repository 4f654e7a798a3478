"""What it costs a program to be timed: the same training with the timing mode in place and without it.

The mode does the same in every step, whatever the batch: on a batch of one it is seen best. Each training is
in a process of its own, as a run of `samestep scale` is, and the two of a pair take turns: putting observers
in and taking them out again would cost more than they do. Processes differ by where their memory is, so there
are several pairs; what is left between trainings that nobody times is told beside.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import models, trainings
from benchmarks.measure import Rounds
from benchmarks.processes import Turns
from benchmarks.rows import Row, added_row
from samestep.observations import ObservationWriter, observations_path
from samestep.probe.timing import TimingInstallation

TITLE = "timing: a CNN by hand, below the timing probe and without, one rank, one thread"

_MOST_US = 200.0
"""One percent of a step of 20 ms."""
_NUM_PAIRS = 6
_TURN = 20
"""Steps: twice as many as a block has at most, so that each turn has rows in it."""


def run(*, quick: bool) -> list[Row]:
    rows = []
    for name, is_timed, required in (("timed", True, _MOST_US), ("without, against itself", False, None)):
        pairs = [_pair(is_timed, num_rounds=2 if quick else 40) for _ in range(1 if quick else _NUM_PAIRS)]
        wall, processor = (
            Rounds(
                ours_s=[seconds for pair in pairs for seconds in pair[clock].ours_s],
                theirs_s=[seconds for pair in pairs for seconds in pair[clock].theirs_s],
            )
            for clock in (0, 1)
        )
        part = processor.added_s().scaled(1e6)
        note = f"by processor time {part.value:.0f} µs ({part.low:.0f} … {part.high:.0f})."
        rows.append(added_row(f"{name}, batch 1", wall, required=required, note=note))
    return rows


def _pair(is_timed: bool, *, num_rounds: int) -> tuple[Rounds, Rounds]:
    """Seconds a step by the clock and by the processor; the first rounds are warm-up."""
    order = random.Random(0)
    taken: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    with TemporaryDirectory() as folder:
        programs = Turns(_program, folder, is_timed), Turns(_program, folder, False)
        for _ in range(num_rounds + 3):
            for which in order.sample((0, 1), 2):
                taken[which].append(programs[which].take(_TURN))
        for program in programs:
            program.close()
    wall, processor = (
        Rounds(ours_s=[t[clock] for t in taken[0][3:]], theirs_s=[t[clock] for t in taken[1][3:]])
        for clock in (0, 1)
    )
    return wall, processor


def _program(folder: str, is_timed: bool) -> Iterator[object]:
    torch.set_num_threads(1)
    if is_timed:
        TimingInstallation(ObservationWriter(observations_path(Path(folder), 0))).install()
    data = trainings.Examples(1, (3, 32, 32), 10)
    return trainings.plain(partial(models.cnn, batch_norm=True), data, 1)
