"""One rank: what a step with Samestep costs more than a hand-written PyTorch loop."""

from functools import partial

import torch

import samestep
from benchmarks import trainings
from benchmarks.measure import compare
from benchmarks.rows import Row, added_row, throughput_row

TITLE = "step: one rank against a hand-written loop, one thread"


def run(*, quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    world = samestep.init()
    rows = []
    batch_size = 8 if quick else trainings.batch_size_for(0.020)
    rounds, block_s = (3, 0.0) if quick else (60, 0.1)
    images = trainings.examples(batch_size, (3, 32, 32), 10)
    for batch_norm in (False, True):
        make = partial(trainings.cnn, batch_norm=batch_norm)
        ours = trainings.samestep(make, images, batch_size, world)
        result = compare(ours, trainings.plain(make, images, batch_size), rounds=rounds, block_s=block_s)
        what = f"CNN {'with' if batch_norm else 'without'} batch norm, batch {batch_size}"
        rows.append(throughput_row(what, result, required=0.98))

    rounds, block_s = (3, 0.0) if quick else (150, 0.04)
    vectors = trainings.examples(32, (16,), 4)
    make = partial(trainings.mlp, 16, 32, 4)
    ours = trainings.samestep(make, vectors, 32, world)
    result = compare(ours, trainings.plain(make, vectors, 32), rounds=rounds, block_s=block_s)
    rows.append(added_row("tiny MLP, batch 32, loaders included", result, required=150))
    world.share = None  # the loader above was left in the middle of an epoch
    ours = trainings.samestep_without_loader(make, vectors, 32, world)
    theirs = trainings.plain_without_loader(make, vectors, 32)
    rows.append(
        added_row(
            "tiny MLP, batch 32, without loaders", compare(ours, theirs, rounds=rounds, block_s=block_s)
        )
    )
    world.close()
    return rows
