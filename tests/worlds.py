"""Real worlds of gloo ranks for tests: processes that start once and serve a whole test session.

A test asks `run(size, function, **arguments)`; `function(world, **arguments)` runs on every rank and its
results come back as a list by rank. Functions live at the top level of a test module, so that the ranks
can import them.
"""

import importlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

# before the server of ranks loads torch: more threads than cores make four ranks crawl
os.environ["OMP_NUM_THREADS"] = "1"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torchmetrics", "samestep.train.session"])

TIMEOUT_S = 120.0


class RankFailed(AssertionError):
    """An exception on a rank, with its traceback as text; `kind` is the exception's class name."""

    def __init__(self, rank: int, kind: str, message: str, trace: str) -> None:
        super().__init__(f"rank {rank} raised {kind}: {message}\n{trace}")
        self.rank, self.kind, self.message = rank, kind, message


class Pool:
    """`size` ranks that wait for work."""

    def __init__(self, size: int, *, on_gpus: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.size = size
        self.pipes = []
        self.processes = []
        for rank in range(size):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_serve, args=(theirs, rank, size, port, on_gpus))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((function.__module__, function.__qualname__, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(TIMEOUT_S):
                self.close()
                raise RankFailed(rank, "TimeoutError", f"no answer in {TIMEOUT_S} s", "")
            answers.append(pipe.recv())
        failures = [(rank, *answer[1]) for rank, answer in enumerate(answers) if not answer[0]]
        if failures:
            # ranks that were left alone by a failing one may be out of step: start afresh
            self.close()
            raise RankFailed(*next((f for f in failures if "Connection" not in f[2]), failures[0]))
        return [answer[1] for answer in answers]

    def close(self, patience_s: float = 0.0) -> None:
        """End the ranks: those that wait for work leave by themselves when nobody can ask them any more."""
        _pools.pop(self.size, None)
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(patience_s)
            process.kill()
            process.join()


_pools: dict[int, Pool] = {}


def run(size: int, function: Callable[..., Any], **arguments: Any) -> list[Any]:
    """Run `function(world, **arguments)` on each rank of a world; the results by rank."""
    if size not in _pools:
        _pools[size] = Pool(size)
    return _pools[size].run(function, **arguments)


def close(size: int) -> None:
    """End the ranks of a world that no other test will ask for."""
    if size in _pools:
        _pools[size].close(patience_s=10.0)


def close_all() -> None:
    for pool in list(_pools.values()):
        pool.close(patience_s=10.0)


def _serve(pipe: Any, rank: int, size: int, port: int, on_gpus: bool) -> None:
    if not on_gpus:  # worlds of any size, wherever the tests run
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    # loader workers start as they do in a process that nobody has forked
    multiprocessing.set_start_method("fork", force=True)
    import torch

    import samestep

    torch.set_num_threads(1)
    world = samestep.init(seed=0)
    while True:
        try:
            module, name, arguments = pipe.recv()
        except EOFError:  # the tests are over
            return
        try:
            function = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            world.set_mode(None)
            world.reset()
            pipe.send((True, function(world, **arguments)))
        except BaseException as error:
            pipe.send((False, (type(error).__name__, str(error), traceback.format_exc())))
