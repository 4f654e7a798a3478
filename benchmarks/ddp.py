"""Two ranks: Samestep against torch's DistributedDataParallel, both in the same two processes."""

import resource
from functools import partial

import torch

import samestep
from benchmarks import models, trainings
from benchmarks.measure import QUICK, Length, Rounds, compare
from benchmarks.processes import call_on_ranks
from benchmarks.rows import Row, throughput_row
from samestep.train.session import Session

TITLE = "ddp: two gloo ranks against hand-tuned DistributedDataParallel, one thread a rank"

_SIZE = 2
_WIDTHS = (1024, 3072, 3072, 2048, 10)
_QUICK_WIDTHS = (16, 32, 10)
_FUSED = {"fused SGD": trainings.fused_sgd, "fused AdamW": trainings.fused_adamw}


def run(*, quick: bool) -> list[Row]:
    rows: list[Row] = call_on_ranks(_SIZE, _rows, quick)[0]
    return [*rows, _memory_row(quick)]


def _rows(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    world = samestep.init()
    per_rank = 8 if quick else int(_most(world, trainings.batch_size_for(0.020)))
    batch_size = per_rank * _SIZE
    # not a TensorDataset, whose rows Samestep takes at once: ranks are compared here, not loaders
    images = trainings.Examples(batch_size, (3, 32, 32), 10)
    cnn, normed = (partial(models.cnn, batch_norm=batch_norm) for batch_norm in (False, True))
    widths = _QUICK_WIDTHS if quick else _WIDTHS
    mlp = partial(models.mlp, *widths)
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
        *(
            throughput_row(
                f"MLP of {num_parameters:,} parameters, {name}, batch 32",
                _against_ddp(world, mlp, vectors, 32, long, optimizer_of),
                required=1.10,
            )
            for name, optimizer_of in _FUSED.items()
        ),
    ]
    world.close()
    return rows


def _memory_row(quick: bool) -> Row:
    """The most memory that a rank had of its own, in processes that do one of the two trainings only."""
    ours, theirs = (max(call_on_ranks(_SIZE, _peak_bytes, quick, is_ours)) / 1e6 for is_ours in (True, False))
    return Row(
        what="the same MLP with fused AdamW: peak memory of a rank", unit="MB", ours=ours, theirs=theirs,
        note="Each rank keeps the optimizer's state for its slice of the parameters.",
    )  # fmt: skip


def _peak_bytes(quick: bool, is_ours: bool) -> int:
    torch.set_num_threads(1)
    world = samestep.init()
    widths = _QUICK_WIDTHS if quick else _WIDTHS
    make, data = partial(models.mlp, *widths), trainings.Examples(32, widths[:1], 10)
    program = trainings.samestep if is_ours else trainings.ddp
    steps = program(make, data, 32, world, optimizer_of=trainings.fused_adamw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        next(steps)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del steps
    world.close()
    return (after - before) << 10


def _against_ddp(
    world: Session,
    make: trainings.Make,
    data: trainings.Examples,
    batch_size: int,
    length: Length,
    optimizer_of: trainings.MakeOptimizer = trainings.sgd,
) -> Rounds:
    world.reset()
    ours = trainings.samestep(make, data, batch_size, world, optimizer_of=optimizer_of)
    theirs = trainings.ddp(make, data, batch_size, world, optimizer_of=optimizer_of)
    return compare(ours, theirs, length, most=partial(_most, world))


def _most(world: Session, number: float) -> float:
    return max(float(part) for part in world.gather(torch.tensor(number, dtype=torch.float64)))
