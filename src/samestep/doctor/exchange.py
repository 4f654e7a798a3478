"""Exchange: one of the ranks that try what a training does between ranks, for the doctor.

`python -m samestep.doctor.exchange` finds its place as any rank does. All ranks do the same; the first prints
one JSON object. Times are those of the slowest rank, best of several: what disturbs one only slows it.

    sum       what fast mode does with gradients: N ranks each send 2 (N − 1)/N of the bytes
    slices    what bitwise mode does: to each other rank its slice and back the result, as many bytes
    inside    a rank and its neighbour on the same machine send to each other, where there is one
    latency   a sum of one number
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from samestep.device import exchange_versions, name_of
from samestep.doctor.facts import node_here
from samestep.world import World, join

MEET_S = 100.0
"""Ranks load torch at different speeds, from file systems that many read at once."""
ENOUGH_S = 0.25
FIRST_BYTES, MOST_BYTES = 1 << 20, 64 << 20
NUM_TIMES = 3
NUM_SMALL = 50
_FLOAT_BYTES = 4

Exchange = Callable[[torch.Tensor], None]


def main() -> int:
    """Measure with all other ranks; what is found is printed by the first."""
    place, device = join(timeout_s=MEET_S)
    world = World(place, device)
    facts = [json.loads(text) for text in world.gather_texts(_own_facts(world))]
    found: dict[str, Any] = {"num_ranks": world.size, "ranks": facts, "exchanges": []}
    if world.size > 1:
        found["latency_s"] = _latency(world)
        found["exchanges"] = [
            _measured(world, "sum", _sum(world), 2 * (world.size - 1) / world.size),
            _measured(world, "slices", _slices(world), 2 * (world.size - 1) / world.size),
        ]
        nodes = [(fact["node"], rank) for rank, fact in enumerate(facts)]
        if len({node for node, _ in nodes}) < len(nodes):
            found["exchanges"].append(_measured(world, "inside", _inside(world, facts), 1.0))
    if world.is_first:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    world.close()
    return 0


def _own_facts(world: World) -> str:
    facts = {
        "node": node_here(),
        "device": name_of(world.device),
        "versions": exchange_versions(world.device),
    }
    return json.dumps(facts)


def _measured(world: World, name: str, exchange: Exchange, times_sent: float) -> dict[str, Any]:
    """Seconds of an exchange that is large enough, and the bytes that a rank sends in a second."""
    num_bytes = FIRST_BYTES
    while (seconds := _seconds(world, exchange, num_bytes)) < ENOUGH_S and num_bytes < MOST_BYTES:
        num_bytes *= 2
    best = min(seconds, *(_seconds(world, exchange, num_bytes) for _ in range(NUM_TIMES - 1)))
    return {
        "name": name, "bytes": num_bytes, "seconds": best, "bytes_per_s": times_sent * num_bytes / best
    }  # fmt: skip


def _seconds(world: World, exchange: Exchange, num_bytes: int) -> float:
    tensor = torch.ones(num_bytes // _FLOAT_BYTES, device=world.device)
    world.any(False)  # all begin together
    began = time.perf_counter()
    exchange(tensor)
    tensor[-1].item()  # a device may have only been told to do it
    own = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    return max(float(part) for part in world.gather(own))


def _latency(world: World) -> float:
    number = torch.ones(1, device=world.device)
    trips = []
    for _ in range(NUM_SMALL):
        began = time.perf_counter()
        world.sum_(number, of_gradients=True).wait()
        number.item()
        trips.append(time.perf_counter() - began)
        number.fill_(1.0)
    own = torch.tensor(min(trips), dtype=torch.float64)
    return max(float(part) for part in world.gather(own))


def _sum(world: World) -> Exchange:
    def exchange(tensor: torch.Tensor) -> None:
        world.sum_(tensor, of_gradients=True).wait()

    return exchange


def _slices(world: World) -> Exchange:
    others = [rank for rank in range(world.size) if rank != world.rank]

    def exchange(tensor: torch.Tensor) -> None:
        slices = tensor.tensor_split(world.size)
        own = slices[world.rank]
        received = {rank: [torch.empty_like(own)] for rank in others}
        world.post({rank: [slices[rank]] for rank in others}, received).wait()
        for rank in others:
            own.add_(received[rank][0])
        world.post({rank: [own] for rank in others}, {rank: [slices[rank]] for rank in others}).wait()

    return exchange


def _inside(world: World, facts: list[dict[str, Any]]) -> Exchange:
    same = [rank for rank, fact in enumerate(facts) if fact["node"] == facts[world.rank]["node"]]
    place = same.index(world.rank)
    partner = same[place ^ 1] if place ^ 1 < len(same) else None

    def exchange(tensor: torch.Tensor) -> None:
        there = {} if partner is None else {partner: [tensor]}
        back = {} if partner is None else {partner: [torch.empty_like(tensor)]}
        world.post(there, back).wait()

    return exchange


if __name__ == "__main__":
    sys.exit(main())
