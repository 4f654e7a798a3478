"""Requests to make files of."""

from samestep.cluster.request import Item, Needs, Request


def request_of(*, engine="slurm", world_size=2, num_nodes=1, items=1, needs=None, **more):
    """A request for a training of the digits, as `submit` makes it."""
    words = ("train", "--gpus", str(world_size), "--threads", "1", "samestep.demo:digits")
    fields = {
        "name": f"{world_size}-ranks",
        "engine": engine,
        "command": "train",
        "items": tuple(
            Item(name=f"{world_size}-ranks" if items == 1 else f"{world_size}-ranks-lr={n}", words=words)
            for n in range(items)
        ),
        "needs": Needs(world_size=world_size, num_nodes=num_nodes, **(needs or {})),
        "python": "/opt/env/bin/python",
        "workdir": "/home/ada",
        "home": "/shared/digits",
    }
    return Request(**(fields | more))
