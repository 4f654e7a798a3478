"""A diagnosis of two sound machines, from which each test takes one thing away."""

from dataclasses import replace

from samestep.doctor.diagnosis import Between, Diagnosis, Exchange, Node
from samestep.doctor.facts import Facts

FACTS = Facts(
    host="gpu01",
    node="gpu01 boot net:[1]",
    address="10.0.0.1",
    interface="eth0",
    interfaces={"lo": "127.0.0.1", "eth0": "10.0.0.1"},
    gloo=None,
    nccl=None,
    has_infiniband=False,
    versions={"python": "3.11.7", "samestep": "0.1.0", "torch": "2.13.0"},
    num_gpus=0,
    num_cores=8,
    threads_asked=None,
    threads=4,
    open_files=1024,
    locked_bytes=8 << 20,
    processes=None,
    shared_memory_bytes=16 << 30,
)


def node(index=0, **changes):
    """A sound machine with two ranks; `changes` are of its facts."""
    address = f"10.0.0.{index + 1}"
    own = {
        "host": f"gpu{index + 1:02d}",
        "node": f"gpu{index + 1:02d} boot net:[1]",
        "address": address,
        "interfaces": {"lo": "127.0.0.1", "eth0": address},
    }
    facts = replace(FACTS, **{**own, **changes})
    return Node(index=index, num_ranks=2, facts=facts, versions=facts.versions, seen_s=0.01)


def between(first=0, second=1, **changes):
    values = {
        "latency_s": 3e-5,
        "bytes_per_s": 1.2e8,
        "clock_offset_s": 1e-4,
        "clock_bound_s": 4e-5,
        **changes,
    }
    return Between(first=first, second=second, **values)


def diagnosis(*nodes, links=None, **changes):
    nodes = list(nodes) or [node(0), node(1)]
    values = {
        "launcher": "srun",
        "num_processes": len(nodes),
        "num_ranks": 2 * len(nodes),
        "meeting": "gpu01",
        "folder": "/shared/run",
        "links": [between()] if links is None else links,
        "exchanges": [Exchange(name="sum", bytes=1 << 25, seconds=0.42, bytes_per_s=1.2e8)],
        "exchange_latency_s": 6e-4,
        **changes,
    }
    return Diagnosis(nodes=nodes, **values)
