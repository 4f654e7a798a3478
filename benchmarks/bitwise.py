"""Two ranks in bitwise mode: against DDP that accumulates the same shards, and against fast mode."""

from dataclasses import replace
from functools import partial

import torch

import samestep
from benchmarks import models, trainings
from benchmarks.measure import QUICK, Length, Rounds, compare
from benchmarks.processes import call_on_ranks
from benchmarks.rows import Row, throughput_row
from samestep.train.session import Session
from samestep.world import join

TITLE = "bitwise: two gloo ranks, one thread a rank"

_SIZE = 2
_SHARDS = 8
_AT_MOST = 1.05
_WIDTHS = (1024, 3072, 3072, 2048, 10)


def run(*, quick: bool) -> list[Row]:
    rows: list[Row] = call_on_ranks(_SIZE, _rows, quick)[0]
    return rows


def _rows(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    fast = samestep.init()
    place, device = join()
    sharded = {shards: Session(replace(place, shards=shards), device, seed=0) for shards in (_SIZE, _SHARDS)}
    per_rank = 8 if quick else int(_most(fast, trainings.batch_size_for(0.020)))
    batch_size = per_rank * _SIZE // _SHARDS * _SHARDS
    images = trainings.Examples(batch_size, (3, 32, 32), 10)
    length, long = (
        (QUICK, QUICK) if quick else (Length(rounds=150, block_s=0.06), Length(rounds=40, block_s=0.2))
    )
    plain, normed = (partial(models.cnn, batch_norm=batch_norm) for batch_norm in (False, True))
    widths = (16, 32, 10) if quick else _WIDTHS
    mlp, vectors = partial(models.mlp, *widths), trainings.Examples(64, widths[:1], 10)

    def against_ddp(
        make: trainings.Make, data: trainings.Examples, batch_size: int, length: Length
    ) -> Rounds:
        sharded[_SHARDS].reset()
        ours = trainings.samestep(make, data, batch_size, sharded[_SHARDS])
        theirs = trainings.ddp(make, data, batch_size, fast, turns=_SHARDS // _SIZE)
        return compare(ours, theirs, length, most=partial(_most, fast))

    def against_fast(
        make: trainings.Make, data: trainings.Examples, batch_size: int, length: Length
    ) -> Rounds:
        sharded[_SIZE].reset()
        ours = trainings.samestep(make, data, batch_size, sharded[_SIZE])
        theirs = trainings.samestep(make, data, batch_size, fast)
        return compare(ours, theirs, length, most=partial(_most, fast))

    required = 1 / _AT_MOST
    rows = [
        throughput_row(
            f"{_SHARDS} shards against DDP, CNN, batch {batch_size}",
            against_ddp(plain, images, batch_size, length),
            required=required,
            note=f"DDP accumulates in {_SHARDS // _SIZE} turns; {required:.3f} is {_AT_MOST} times its step.",
        ),
        throughput_row(
            f"{_SHARDS} shards against DDP, CNN with batch norm",
            against_ddp(normed, images, batch_size, length),
            required=required,
        ),
        throughput_row(
            f"{_SIZE} shards against fast mode, CNN",
            against_fast(plain, images, batch_size, length),
            required=required,
        ),
        throughput_row(
            f"{_SHARDS} shards against DDP, MLP of 19M parameters",
            against_ddp(mlp, vectors, 64, long),
        ),
        throughput_row(
            f"{_SIZE} shards against fast, MLP of 19M parameters",
            against_fast(mlp, vectors, 64, long),
        ),
    ]
    for session in (*sharded.values(), fast):
        session.reset()
    fast.close()
    return rows


def _most(world: Session, number: float) -> float:
    return max(float(part) for part in world.gather(torch.tensor(number, dtype=torch.float64)))
