"""Two ranks: Samestep against torch's DistributedDataParallel, both in the same two processes."""

import multiprocessing
import os
import socket
from functools import partial
from multiprocessing.connection import Connection

import torch

import samestep
from benchmarks import trainings
from benchmarks.measure import Rounds, compare
from benchmarks.rows import Row, throughput_row
from samestep.train.session import Session

TITLE = "ddp: two gloo ranks against hand-tuned DistributedDataParallel, one thread a rank"

_SIZE = 2
_WIDTHS = (1024, 3072, 3072, 2048, 10)  # 19 million parameters


def run(*, quick: bool) -> list[Row]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    ranks = [
        context.Process(target=_rank, args=(rank, port, quick, theirs if rank == 0 else None), daemon=True)
        for rank in range(_SIZE)
    ]
    for rank in ranks:
        rank.start()
    theirs.close()
    rows: list[Row] = ours.recv()
    for rank in ranks:
        rank.join()
    return rows


def _rank(rank: int, port: int, quick: bool, answer: Connection | None) -> None:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(_SIZE), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(_SIZE),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    torch.set_num_threads(1)
    world = samestep.init()
    rows = _rows(world, quick)
    if answer is not None:
        answer.send(rows)
    world.close()


def _rows(world: Session, quick: bool) -> list[Row]:
    def most(seconds: float) -> float:
        return max(float(part) for part in world.gather(torch.tensor(seconds, dtype=torch.float64)))

    def against_ddp(make, data, batch_size, rounds, block_s) -> Rounds:  # type: ignore[no-untyped-def]
        ours = trainings.samestep(make, data, batch_size, world)
        theirs = trainings.ddp(make, data, batch_size, world)
        rounds, block_s = (3, 0.0) if quick else (rounds, block_s)
        return compare(ours, theirs, rounds=rounds, block_s=block_s, together=world.barrier, most=most)

    per_rank = 8 if quick else int(most(trainings.batch_size_for(0.020)))
    batch_size = per_rank * _SIZE
    images = trainings.examples(batch_size, (3, 32, 32), 10)
    cnn, normed = (partial(trainings.cnn, batch_norm=batch_norm) for batch_norm in (False, True))
    widths = (16, 32, 10) if quick else _WIDTHS
    vectors = trainings.examples(32, widths[:1], 10)
    return [
        throughput_row(
            f"CNN without batch norm, batch {batch_size}",
            against_ddp(cnn, images, batch_size, 60, 0.1),
            required=0.98,
        ),
        throughput_row(
            f"CNN with batch norm, batch {batch_size}",
            against_ddp(normed, images, batch_size, 60, 0.1),
            note="DDP's statistics are each rank's own, which is another and cheaper training.",
        ),
        throughput_row(
            "MLP of 19 million parameters, batch 32",
            against_ddp(partial(trainings.mlp, *widths), vectors, 32, 30, 0.3),
        ),
    ]
