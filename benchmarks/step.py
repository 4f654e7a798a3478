"""One rank: what a step with Samestep costs more than a hand-written PyTorch loop."""

from functools import partial

import torch

import samestep
from benchmarks import models, trainings
from benchmarks.measure import QUICK, Length, compare
from benchmarks.rows import Row, added_row, throughput_row
from samestep.train.session import Session

TITLE = "step: one rank against a hand-written loop, one thread"


def run(*, quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    world = samestep.init()
    rows = [*_cnn_rows(world, quick), *_mlp_rows(world, quick)]
    world.close()
    return rows


def _cnn_rows(world: Session, quick: bool) -> list[Row]:
    length = QUICK if quick else Length(rounds=400, block_s=0.02)
    batch_size = 8 if quick else trainings.batch_size_for(0.020)
    own = trainings.Examples(batch_size, (3, 32, 32), 10)
    cnn, normed = (partial(models.cnn, batch_norm=batch_norm) for batch_norm in (False, True))
    rows = []
    for name, make, data in (
        ("CNN without batch norm, TensorDataset", cnn, own.as_tensors()),
        ("CNN with batch norm, TensorDataset", normed, own.as_tensors()),
        ("CNN without batch norm, own data set", cnn, own),
        ("CNN with batch norm, own data set", normed, own),
    ):
        ours = trainings.samestep(make, data, batch_size, world)
        result = compare(ours, trainings.plain(make, data, batch_size), length)
        rows.append(throughput_row(f"{name}, batch {batch_size}", result, required=0.98))
    first, second = (trainings.plain(cnn, own, batch_size) for _ in range(2))
    note = "how far from 1 a figure of this table is by chance."
    rows.append(
        throughput_row("the hand-written loop against itself", compare(first, second, length), note=note)
    )
    return rows


def _mlp_rows(world: Session, quick: bool) -> list[Row]:
    length = QUICK if quick else Length(rounds=150, block_s=0.04)
    own = trainings.Examples(32, (16,), 4)
    make = partial(models.mlp, 16, 32, 4)
    rows = []
    for name, data in (("TensorDataset", own.as_tensors()), ("own data set", own)):
        ours = trainings.samestep(make, data, 32, world)
        result = compare(ours, trainings.plain(make, data, 32), length)
        rows.append(added_row(f"tiny MLP, {name}, batch 32", result, required=150))
    world.share = None  # the loader above was left in the middle of an epoch
    ours = trainings.samestep_without_loader(make, own, 32, world)
    result = compare(ours, trainings.plain_without_loader(make, own, 32), length)
    rows.append(added_row("tiny MLP, without loaders, batch 32", result))
    return rows
