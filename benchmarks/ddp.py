"""Two ranks: Samestep against torch's DistributedDataParallel, both in the same two processes."""

from functools import partial

import torch

import samestep
from benchmarks import trainings
from benchmarks.measure import QUICK, Length, Rounds, compare
from benchmarks.processes import call_on_ranks
from benchmarks.rows import Row, throughput_row
from samestep.train.session import Session

TITLE = "ddp: two gloo ranks against hand-tuned DistributedDataParallel, one thread a rank"

_SIZE = 2
_WIDTHS = (1024, 3072, 3072, 2048, 10)


def run(*, quick: bool) -> list[Row]:
    rows: list[Row] = call_on_ranks(_SIZE, _rows, quick)[0]
    return rows


def _rows(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    world = samestep.init()
    per_rank = 8 if quick else int(_most(world, trainings.batch_size_for(0.020)))
    batch_size = per_rank * _SIZE
    # not a TensorDataset, whose rows Samestep takes at once: ranks are compared here, not loaders
    images = trainings.Examples(batch_size, (3, 32, 32), 10)
    cnn, normed = (partial(trainings.cnn, batch_norm=batch_norm) for batch_norm in (False, True))
    widths = (16, 32, 10) if quick else _WIDTHS
    mlp = partial(trainings.mlp, *widths)
    num_parameters = sum(parameter.numel() for parameter in mlp().parameters())
    vectors = trainings.Examples(32, widths[:1], 10)
    short, long = (
        (QUICK, QUICK) if quick else (Length(rounds=200, block_s=0.06), Length(rounds=40, block_s=0.2))
    )
    rows = [
        throughput_row(
            f"CNN without batch norm, batch {batch_size}",
            _against_ddp(world, cnn, images, batch_size, short),
            required=0.98,
        ),
        throughput_row(
            f"CNN with batch norm, batch {batch_size}",
            _against_ddp(world, normed, images, batch_size, short),
            note="DDP's statistics are each rank's own: another training, and a cheaper one.",
        ),
        throughput_row(
            f"MLP of {num_parameters:,} parameters, batch 32", _against_ddp(world, mlp, vectors, 32, long)
        ),
    ]
    world.close()
    return rows


def _against_ddp(
    world: Session, make: trainings.Make, data: trainings.Examples, batch_size: int, length: Length
) -> Rounds:
    ours = trainings.samestep(make, data, batch_size, world)
    theirs = trainings.ddp(make, data, batch_size, world)
    return compare(ours, theirs, length, most=partial(_most, world))


def _most(world: Session, number: float) -> float:
    return max(float(part) for part in world.gather(torch.tensor(number, dtype=torch.float64)))
