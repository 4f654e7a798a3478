import os
import signal
import time
from pathlib import Path

import pytest
import torch

import worlds
from samestep import window
from samestep.train.session import Session
from samestep.window import Window, meet

_SIZES = [1, 7, 70_001]


def _window(world: Session) -> Window:
    opened = meet(world.rank, world.gather_texts, patience_s=60.0)
    assert opened is not None
    return opened


def _tensor(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (100 * torch.randn(numel, generator=generator)).to(dtype)


def _in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _sums_are_those_of_all_ranks_in_order(world: Session) -> None:
    shared = _window(world)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for numel in (*_SIZES, 3 * window._HALF_BYTES // dtype.itemsize + 5):
            parts = [_tensor(rank, numel, dtype) for rank in range(world.size)]
            tensor = parts[world.rank].clone()
            shared.all_reduce(tensor)
            assert torch.equal(tensor, _in_order(parts))
    columns = [_tensor(rank, 12, torch.float32).view(3, 4).T for rank in range(world.size)]
    column = columns[world.rank].clone(memory_format=torch.preserve_format)
    assert not column.is_contiguous()
    shared.all_reduce(column)
    assert torch.equal(column, _in_order(columns))


def _gathered_through_it(world: Session) -> None:
    assert world._window is not None
    for shape in ((), (0,), (3, 4), (window._HALF_BYTES // 4 + 3,)):
        for dtype in (torch.float64, torch.bool):
            parts = [
                _tensor(rank, torch.Size(shape).numel(), dtype).view(shape) for rank in range(world.size)
            ]
            own = parts[world.rank].clone()
            before = world._window._round
            found = world.gather(own)
            assert all(map(torch.equal, found, parts)) and found[world.rank] is not own
            assert (world._window._round > before) == bool(own.numel())


def test_worlds_of_one_machine_gather_through_it() -> None:
    worlds.run(3, _gathered_through_it)


def _slices_are_summed_by_their_owners_and_gathered(world: Session) -> None:
    shared = _window(world)
    for length in (3, 1000, window._HALF_BYTES // 4 + 3):
        parts = [_tensor(rank, length * world.size, torch.float32) for rank in range(world.size)]
        flat, total = parts[world.rank].clone(), _in_order(parts)
        # in two tensors each, cut at different places
        slices = [row.split([rank, length - rank]) for rank, row in enumerate(flat.chunk(world.size))]
        shared.reduce_scatter(slices)
        own = slice(world.rank * length, (world.rank + 1) * length)
        assert torch.equal(flat[own], total[own])
        others = [rank for rank in range(world.size) if rank != world.rank]
        assert all(
            torch.equal(flat.view(world.size, -1)[rank], parts[world.rank].view(world.size, -1)[rank])
            for rank in others
        )
        shared.all_gather(slices)
        assert torch.equal(flat, total)


def _ranks_that_come_with_different_things(world: Session) -> None:
    _window(world).all_reduce(torch.zeros(1 + world.rank))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_are_those_of_all_ranks_in_order(size: int) -> None:
    worlds.run(size, _sums_are_those_of_all_ranks_in_order)


@pytest.mark.parametrize("size", [2, 3])
def test_slices_are_summed_by_their_owners_and_gathered(size: int) -> None:
    worlds.run(size, _slices_are_summed_by_their_owners_and_gathered)


def test_ranks_that_do_different_things_are_told_so() -> None:
    with pytest.raises(worlds.RankFailed, match=r"different things to exchange, by rank \[4, 8\] bytes"):
        worlds.run(2, _ranks_that_come_with_different_things)


def _nothing_is_left_behind(world: Session) -> list[str]:
    kept = _window(world)
    world.sum_(torch.zeros(1)).wait()
    left = [path.name for path in window._FOLDER.glob("samestep-*") if _is_mapped_here(path)]
    del kept
    return left


def _is_mapped_here(path: Path) -> bool:
    return path.name in Path("/proc/self/maps").read_text() and path.exists()


def test_nothing_is_left_behind() -> None:
    assert worlds.run(2, _nothing_is_left_behind) == [[], []]


def _window_where_one_rank_cannot_share(world: Session) -> bool:
    folder = window._FOLDER
    if world.rank == 1:
        window._FOLDER = Path("/does/not/exist")
    try:
        return meet(world.rank, world.gather_texts, patience_s=60.0) is None
    finally:
        window._FOLDER = folder


def test_without_shared_memory_on_all_ranks_none_has_a_window() -> None:
    assert worlds.run(3, _window_where_one_rank_cannot_share) == [True] * 3


def _pair() -> tuple[int, window._Memory, window._Memory]:
    """Two memories, of which a child process holds the second."""
    paths = [window._FOLDER / f"samestep-test-{os.getpid()}-{rank}" for rank in range(2)]
    own = window._make(paths[0])
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        held = window._make(paths[1])
        os.write(told, b"x")
        time.sleep(60.0)
        os._exit(held is None)
    os.read(ready, 1)
    other = window._open(paths[1])
    for path in paths:
        path.unlink()
    assert own is not None and other is not None
    return child, own, other


def test_a_rank_that_is_gone_is_not_waited_for() -> None:
    child, own, other = _pair()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(RuntimeError, match="Connection closed by peer: rank 1 ended"):
        Window(0, [own, other], patience_s=60.0).all_reduce(torch.zeros(1))


def test_a_rank_that_is_late_is_waited_for_so_long() -> None:
    child, own, other = _pair()
    try:
        with pytest.raises(RuntimeError, match="Timed out waiting 1 s to recv from rank 1"):
            Window(0, [own, other], patience_s=1.0).all_reduce(torch.zeros(1))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
