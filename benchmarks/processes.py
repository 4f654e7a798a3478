"""Fresh processes for what must not be measured in this one: a rank, or a peak of memory."""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "rich.table", "samestep.train.session"])


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function(*arguments)` in a process of its own."""
    return _results([(function, arguments, {})])[0]


def call_on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The results of `function(*arguments)` on the ranks of a gloo world, by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return _results([(function, arguments, _place(rank, size, port)) for rank in range(size)])


def _place(rank: int, size: int, port: int) -> dict[str, str]:
    names = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_PORT": port,
    }
    place = {name: str(number) for name, number in names.items()}
    return {**place, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


def _results(calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, str]]]) -> list[Any]:
    pipes, processes = [], []
    for function, arguments, environment in calls:
        ours, theirs = _context.Pipe(duplex=False)
        process = _context.Process(
            target=_answer, args=(theirs, function, arguments, environment), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    results = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return results


def _answer(
    pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    pipe.send(function(*arguments))


class Turns:
    """A program in a process of its own, which takes steps when it is asked to and waits in between.

    `function(*arguments)` makes it there: an endless iterator that takes one step at a time.
    """

    def __init__(self, function: Callable[..., Iterator[object]], *arguments: Any) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_take_turns, args=(theirs, function, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def take(self, num_steps: int) -> tuple[float, float]:
        """Seconds a step, by the clock and by the processor."""
        self._pipe.send(num_steps)
        wall, processor = self._pipe.recv()
        return wall / num_steps, processor / num_steps

    def close(self) -> None:
        self._pipe.send(0)
        self._process.join()


def _take_turns(
    pipe: Connection, function: Callable[..., Iterator[object]], arguments: tuple[Any, ...]
) -> None:
    program = function(*arguments)
    while num_steps := pipe.recv():
        began = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            next(program)
        pipe.send((time.perf_counter() - began[0], time.process_time() - began[1]))
