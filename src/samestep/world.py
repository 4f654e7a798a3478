"""World: who I am among the ranks, and what ranks can do together.

Sole reader of the launcher's environment variables and sole caller of `torch.distributed`. Knows nothing
of models, data or training. Over one rank every collective is the identity and no process group exists;
callers never ask for the size to find that out.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from samestep.device import backend_of, device_of
from samestep.errors import LaunchError


class Pending(Protocol):
    """A collective under way; its tensor must not be read before `wait` returns."""

    def wait(self) -> object: ...


class _Done:
    """The collective over one rank: over before it began."""

    def wait(self) -> None:
        return None


_DONE = _Done()


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The examples of one global batch that this rank works on in one turn.

    A step has `turns` turns (more than one when gradients are accumulated). In a turn, all ranks together
    work on `total` examples; this rank on those from `first` to `first + count`. `position` is where the
    turn starts in the epoch's order. No field but `first` and `count` depends on the world.
    """

    first: int
    count: int
    total: int
    turn: int
    turns: int
    epoch: int
    position: int

    @property
    def is_last_turn(self) -> bool:
        return self.turn == self.turns - 1


class World:
    """All replicas of one run, seen from one of them.

    `share` is what the loader last handed to this rank, or None outside of a loader; layers that work
    across ranks read it. Collectives are called by all ranks in the same order, or they wait for ever.
    """

    def __init__(
        self, *, rank: int, size: int, local_rank: int, device: torch.device, launcher: str
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.device = device
        self.launcher = launcher
        self.share: Share | None = None

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size}, device={self.device})"

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.rank == 0

    @property
    def is_idle(self) -> bool:
        """Whether this rank has no example in the current turn and only keeps the others company."""
        return self.share is not None and self.share.count == 0

    def sum_(self, tensor: Tensor) -> Pending:
        """Start to replace `tensor` by its sum over all ranks."""
        if self.size == 1:
            return _DONE
        work = dist.all_reduce(_real(tensor), async_op=True)
        assert work is not None
        return work  # type: ignore[no-any-return]

    def broadcast_(self, tensor: Tensor, *, source: int = 0) -> None:
        """Replace `tensor` by that of rank `source`."""
        if self.size > 1:
            dist.broadcast(_real(tensor), src=source)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, by rank; they have one shape and dtype."""
        if self.size == 1:
            return [tensor]
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather([_real(part) for part in parts], _real(tensor))
        return parts

    def gather_rows(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, by rank; they agree in dtype and number of dimensions, not in shape."""
        if self.size == 1:
            return [tensor]
        shape = torch.tensor(tensor.shape, dtype=torch.int64, device=tensor.device)
        shapes = [tuple(int(n) for n in s) for s in self.gather(shape)] if tensor.dim() else [()] * self.size
        longest = max(_numel(s) for s in shapes)
        flat = tensor.new_zeros(longest)
        flat[: tensor.numel()] = tensor.reshape(-1)
        return [
            part[: _numel(shape)].reshape(shape)
            for part, shape in zip(self.gather(flat), shapes, strict=True)
        ]

    def gather_texts(self, text: str) -> list[str]:
        """The texts of all ranks, by rank."""
        if self.size == 1:
            return [text]
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
        return [bytes(part.tolist()).decode() for part in self.gather_rows(data)]

    def broadcast_text(self, text: str, *, source: int = 0) -> str:
        """The text of rank `source`."""
        if self.size == 1:
            return text
        data = bytearray(text.encode()) if self.rank == source else bytearray()
        length = torch.tensor(len(data))
        self.broadcast_(length, source=source)
        buffer = torch.zeros(int(length), dtype=torch.uint8)
        if data:
            buffer.copy_(torch.frombuffer(data, dtype=torch.uint8))
        if len(buffer):
            self.broadcast_(buffer, source=source)
        return bytes(buffer.tolist()).decode()

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank."""
        total = torch.tensor(float(flag))
        self.sum_(total).wait()
        return bool(total > 0)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.any(False)

    def close(self) -> None:
        """Leave the world; the object is of no use afterwards."""
        global _current
        if _current is self:
            _current = None
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


_current: World | None = None


def current() -> World | None:
    """The world that this process joined, or None before `join`."""
    return _current


def enter(world: World) -> None:
    """Make `world` the current one of this process."""
    global _current
    _current = world


def place_from_environment(env: "os._Environ[str] | dict[str, str]") -> tuple[int, int, int, int, str]:
    """Rank, size, local rank, local size and the launcher's name, from torchrun's variables.

    A process that nobody launched is a world of one.
    """
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return 0, 1, 0, 1, "none"
    values = []
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", None), ("LOCAL_WORLD_SIZE", None)):
        text = env.get(name, default)
        if text is None:
            text = str(values[0]) if name == "LOCAL_RANK" else str(values[1])
        try:
            values.append(int(text))
        except ValueError:
            raise LaunchError(f"{name} is {text!r} in the environment; the launcher must set it to a whole number.") from None
    rank, size, local_rank, local_size = values
    if not 0 <= rank < size:
        raise LaunchError(f"RANK is {rank} and WORLD_SIZE is {size} in the environment; the rank must be below the size.")
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "environment"
    return rank, size, local_rank, local_size, launcher


def join(timeout_s: float = 1800.0) -> tuple[int, int, int, torch.device, str]:
    """Join the world that the environment describes: (rank, size, local rank, device, launcher)."""
    rank, size, local_rank, local_size, launcher = place_from_environment(os.environ)
    device = device_of(local_rank, local_size)
    if size > 1 and not dist.is_initialized():
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name not in os.environ:
                raise LaunchError(f"WORLD_SIZE is {size} but {name} is not set; start the ranks with samestep or torchrun.")
        with _clear_failure(size):
            dist.init_process_group(backend_of(device), timeout=timedelta(seconds=timeout_s))
    return rank, size, local_rank, device, launcher


@contextlib.contextmanager
def _clear_failure(size: int):  # type: ignore[no-untyped-def]
    try:
        yield
    except (dist.DistNetworkError, dist.DistStoreError, RuntimeError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        first = str(error).splitlines()[0]
        raise LaunchError(f"The {size} ranks could not meet at {address}: {first}") from error


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count
