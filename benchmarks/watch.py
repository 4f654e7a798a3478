"""What it costs a program to be watched: steps with the observers in place, and without them, by turns.

A look of the cheap mode comes once in `EVERY` steps, so a round has as many: one look is in each. Turns are
short, so that whatever else the machine does falls on both sides; processor time, which it does not fall on,
is told beside.
"""

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import models, trainings
from benchmarks.measure import Rounds
from benchmarks.rows import Row, throughput_row
from samestep.observations import ObservationWriter, observations_path
from samestep.probe.cheap import CheapInstallation
from samestep.probe.installation import Installation
from samestep.verify.online import EVERY

TITLE = "watch: a CNN by hand, with the probe and without, one rank, one thread"

_STEP_S = 0.020
_TURN = 5
_ALL = 10**9

Watching = Callable[[ObservationWriter], Installation]


def run(*, quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    batch_size = 8 if quick else trainings.batch_size_for(_STEP_S)
    data = trainings.Examples(batch_size, (3, 32, 32), 10)
    make = partial(models.cnn, batch_norm=True)
    rows = []
    watching: Watching | None
    for name, watching, required, num_turns in (
        (f"watched all through, a look every {EVERY} steps", _cheap, 0.97, EVERY // _TURN),
        ("the whole probe, after the steps in full", partial(_whole, 1), None, 2),
        ("the whole probe, a step in full", partial(_whole, _ALL), None, 2),
        ("without, against itself", None, None, EVERY // _TURN),
    ):
        programs = [trainings.plain(make, data, batch_size) for _ in range(2)]
        num_rounds = 2 if quick else 24 if num_turns > 2 else 12
        wall, processor = compare(
            watching, *programs, num_rounds=num_rounds, num_turns=1 if quick else num_turns
        )
        part = processor.throughput()
        note = f"by processor time {part.value:.3f} ({part.low:.3f} … {part.high:.3f})."
        rows.append(throughput_row(f"{name}, batch {batch_size}", wall, required=required, note=note))
    return rows


def _cheap(writer: ObservationWriter) -> Installation:
    return CheapInstallation(writer, EVERY)


def _whole(steps_in_full: int, writer: ObservationWriter) -> Installation:
    return Installation(writer, steps_in_full)


def compare(
    watching: Watching | None,
    ours: Iterator[None],
    theirs: Iterator[None],
    *,
    num_rounds: int,
    num_turns: int,
) -> tuple[Rounds, Rounds]:
    """Seconds a step by the clock and by the processor; observers are there only in the turns of `ours`."""
    order = random.Random(0)
    programs = ours, theirs
    seconds: dict[tuple[int, int], list[float]] = {(clock, side): [] for clock in (0, 1) for side in (0, 1)}
    with TemporaryDirectory() as folder:
        writer = ObservationWriter(observations_path(Path(folder), 0))
        installation = watching(writer) if watching is not None else None
        # the first round is warm-up: the first step of a program that is watched describes all that there is
        for _ in range(num_rounds + 1):
            spent = dict.fromkeys(seconds, 0.0)
            for side in (side for _ in range(num_turns) for side in order.sample((0, 1), 2)):
                if side == 0 and installation is not None:
                    installation.watch.is_on = True
                    installation.install()
                before = time.perf_counter(), time.process_time()
                for _ in range(_TURN):
                    next(programs[side])
                spent[0, side] += time.perf_counter() - before[0]
                spent[1, side] += time.process_time() - before[1]
                if side == 0 and installation is not None:
                    installation.uninstall()
            for key, value in spent.items():
                seconds[key].append(value / (_TURN * num_turns))
        writer.close()
    wall, processor = (
        Rounds(ours_s=seconds[clock, 0][1:], theirs_s=seconds[clock, 1][1:]) for clock in (0, 1)
    )
    return wall, processor
