"""World: who I am among the ranks, and what ranks can do together.

Sole caller of `torch.distributed`. Knows nothing of models, data or training. Over one rank every collective
is the identity and no process group exists; callers never ask for the size to find that out.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from samestep import phase
from samestep.device import backend_of, device_of, is_host, is_on_host, keep_freed_memory
from samestep.errors import LaunchError, SamestepError
from samestep.findings import Finding
from samestep.launcher import seat_in, whole
from samestep.pending import DONE, All, Flat, Later, Watched
from samestep.pending import Pending as Pending
from samestep.window import Slices, Window, add_in_order, meet

DEFAULT_SHARDS = 8


@dataclass(kw_only=True, slots=True)
class Share:
    """The examples of one global batch that this rank works on in one turn, to `train` or to evaluate.

    A step on `batch` examples has `turns` turns on this rank. In fast mode all ranks together work on
    `total` examples in a turn, this rank on those from `first` to `first + count`; there are several turns
    when gradients are accumulated. In bitwise mode a turn is one shard, or one `part` of it, which is run by
    itself: it starts at 0 and is all there is. `position` is where the turn starts in the epoch's order.

    In fast mode no field but `first`, `count` and `shard` depends on the world; in bitwise mode only which
    shards a rank has, and so `turn` and `turns`. It is never changed; to be frozen, too, would make it three
    times as slow to make, which is done in every step.
    """

    first: int
    count: int
    total: int
    turn: int
    turns: int
    epoch: int
    position: int
    train: bool = True
    batch: int = 0
    shard: int = 0
    part: int = 0
    ends_shard: bool = True


class World:
    """All replicas of one run, seen from one of them.

    `share` is what the loader last handed to this rank, or None outside of a loader; layers that work
    across ranks read it. `shards` is into how many pieces a global batch is cut in bitwise mode, and None in
    fast mode; `allow_drift` is whether the user puts up with other bits there. Collectives are called by all
    ranks in the same order, or they wait for ever.
    """

    def __init__(self, place: "Place", device: torch.device) -> None:
        self.rank = place.rank
        self.size = place.size
        self.local_rank = place.local_rank
        self.launcher = place.launcher
        self.shards = place.shards
        self.allow_drift = place.allow_drift
        self.device = device
        self.share: Share | None = None
        self.on_share: Callable[[Share], None] | None = None
        self.findings: list[Finding] = []
        self.on_finding: Callable[[Finding], None] | None = None
        self._window: Window | None = None
        self._gradients: dist.ProcessGroup | None = None
        if place.size > 1 and dist.is_initialized():
            with phase.waiting():
                self._open_ways(place)

    def _open_ways(self, place: "Place") -> None:
        if is_host(self.device) and place.local_size == place.size:
            self._window = meet(place.rank, self.gather_texts, patience_s=place.timeout_s)
        if self._window is None:
            # gradients leave in the middle of backward, at moments that differ by rank; layers that work
            # across ranks exchange there too. Each kind keeps its own order, so each has its own group,
            # which does not take over how long others wait
            self._gradients = dist.new_group(timeout=timedelta(seconds=place.timeout_s))

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

    @property
    def mode(self) -> Literal["fast", "bitwise"]:
        """How gradients are summed."""
        return "fast" if self.shards is None else "bitwise"

    @property
    def shares_statistics(self) -> bool:
        """Whether norm layers take statistics over several ranks; in bitwise mode they see their shard."""
        return self.size > 1 and self.shards is None

    def sum_(self, tensor: Tensor, *, of_gradients: bool = False) -> Pending:
        """Start to replace `tensor` by its sum over all ranks.

        Sums `of_gradients` are in order among themselves; they need not be with other collectives.
        """
        if self.size == 1:
            return DONE
        if (window := self._window_for(tensor)) is not None:
            return Watched(Later(partial(window.all_reduce, _real(tensor))))
        group = self._gradients if of_gradients else None
        work = dist.all_reduce(_real(tensor), group=group, async_op=True)
        assert work is not None
        return Watched(work)

    def sum_slices_(self, slices: Slices) -> Pending:
        """Start to make this rank's slice its sum over all ranks; the others become anything.

        A slice is made up of flat tensors, of one dtype and device. In order with sums of gradients.
        """
        if self.size == 1:
            return DONE
        if (window := self._window_for(slices[0][0])) is not None:
            return Watched(Later(partial(window.reduce_scatter, slices)))
        flat = Flat(slices)
        flat.take(range(self.size))
        own = flat.rows[self.rank]
        settle = Later(partial(flat.give, [self.rank]))
        if not is_on_host(own):
            work = dist.reduce_scatter_tensor(own, flat.buffer, group=self._gradients, async_op=True)
            assert work is not None
            return All([Watched(work), settle])
        received = [row if row is own else torch.empty_like(own) for row in flat.rows]
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = self.post(
            {rank: [flat.rows[rank]] for rank in others}, {rank: [received[rank]] for rank in others}
        )
        return All([sent, Later(partial(add_in_order, received, own)), settle])

    def gather_slices_(self, slices: Slices) -> Pending:
        """Start to fill the slices of the other ranks with what those have there."""
        if self.size == 1:
            return DONE
        if (window := self._window_for(slices[0][0])) is not None:
            return Watched(Later(partial(window.all_gather, slices)))
        flat = Flat(slices)
        flat.take([self.rank])
        own = flat.rows[self.rank]
        others = [rank for rank in range(self.size) if rank != self.rank]
        settle = Later(partial(flat.give, others))
        if not is_on_host(own):
            work = dist.all_gather_into_tensor(flat.buffer, own, group=self._gradients, async_op=True)
            assert work is not None
            return All([Watched(work), settle])
        sent = self.post({rank: [own] for rank in others}, {rank: [flat.rows[rank]] for rank in others})
        return All([sent, settle])

    def post(
        self, sends: Mapping[int, Sequence[Tensor]], receives: Mapping[int, Sequence[Tensor]]
    ) -> Pending:
        """Start to send tensors to other ranks and to fill others with what those send, by rank, in order.

        All are flat and contiguous. In order with sums of gradients.
        """
        operations = [
            dist.P2POp(operation, _as_bytes(tensor), rank, self._gradients)
            for operation, by_rank in ((dist.isend, sends), (dist.irecv, receives))
            for rank, tensors in by_rank.items()
            for tensor in tensors
            if tensor.numel()
        ]
        return Watched(All(dist.batch_isend_irecv(operations))) if operations else DONE

    def broadcast_(self, tensor: Tensor, *, source: int = 0) -> None:
        """Replace `tensor` by that of rank `source`."""
        if self.size > 1:
            data = tensor.contiguous()
            with phase.waiting():
                dist.broadcast(_as_bytes(data), src=source)
            if data.data_ptr() != tensor.data_ptr():
                tensor.copy_(data)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, by rank; they have one shape and dtype."""
        if self.size == 1:
            return [tensor]
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with phase.waiting():
            if (window := self._window_for(tensor)) is not None:
                parts[self.rank].copy_(tensor)
                window.all_gather([[_as_bytes(part)] for part in parts])
            else:
                dist.all_gather([_as_bytes(part) for part in parts], _as_bytes(tensor))
        return parts

    def gather_rows(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, by rank; they agree in dtype and number of dimensions, not in shape."""
        if self.size == 1:
            return [tensor]
        shape = torch.tensor(tensor.shape, dtype=torch.int64, device=tensor.device)
        shapes = [tuple(int(n) for n in s) for s in self.gather(shape)] if tensor.dim() else [()] * self.size
        longest = max(math.prod(s) for s in shapes)
        flat = tensor.new_zeros(longest)
        flat[: tensor.numel()] = tensor.reshape(-1)
        return [
            part[: math.prod(shape)].reshape(shape)
            for part, shape in zip(self.gather(flat), shapes, strict=True)
        ]

    def gather_texts(self, text: str) -> list[str]:
        """The texts of all ranks, by rank."""
        if self.size == 1:
            return [text]
        return [_text(part) for part in self.gather_rows(_bytes(text))]

    def broadcast_text(self, text: str, *, source: int = 0) -> str:
        """The text of rank `source`."""
        if self.size == 1:
            return text
        data = _bytes(text)
        length = torch.tensor(len(data))
        self.broadcast_(length, source=source)
        if self.rank != source:
            data = torch.empty(int(length), dtype=torch.uint8)
        if len(data):
            self.broadcast_(data, source=source)
        return _text(data)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank."""
        total = torch.tensor(float(flag))
        self.sum_(total).wait()
        return bool(total > 0)

    def notice(self, finding: Finding) -> None:
        """Keep a finding and tell it once: to `on_finding`, or to the first rank's stderr."""
        if any((known.cause, known.message) == (finding.cause, finding.message) for known in self.findings):
            return
        self.findings.append(finding)
        if self.on_finding is not None:
            self.on_finding(finding)
        elif self.is_first:
            sys.stderr.write(f"samestep: {finding.message} {finding.fix}\n")

    def drift(self, what: str, error: type[SamestepError], fix: str = "Make it the same throughout") -> None:
        """Refuse what would change the bits of a result in bitwise mode; a finding where drift is allowed."""
        if not self.allow_drift:
            raise error(f"{what} That would change the bits of the result. {fix}, or say --allow-drift.")
        self.notice(
            Finding(
                cause="bits-may-drift",
                message=f"{what} The bits of the result are not those of an undisturbed run.",
                evidence={"what": what},
                fix=f"{fix}, and leave out --allow-drift.",
            )
        )

    def _window_for(self, tensor: Tensor) -> Window | None:
        return self._window if is_on_host(tensor) else None

    def close(self) -> None:
        """Leave the world; the object is of no use afterwards."""
        global _current
        if _current is self:
            _current = None
        self._gradients = self._window = None
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


_current: World | None = None
_was_entered = False


def was_entered() -> bool:
    """Whether this process ever joined a world, also if it has left it."""
    return _was_entered


def current() -> World | None:
    """The world that this process joined, or None before `join`."""
    return _current


def enter(world: World) -> None:
    """Make `world` the current one of this process."""
    global _current, _was_entered
    _current, _was_entered = world, True


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a process stands among the ranks, and in which mode they train, as its launcher said."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"
    shards: int | None = None
    allow_drift: bool = False
    timeout_s: float = 1800.0


def place_in(env: Mapping[str, str]) -> Place:
    """The place that the launcher's variables give; a process that nobody launched is a world of one."""
    is_bitwise = env.get("SAMESTEP_MODE") == "bitwise"
    shards = whole(env, "SAMESTEP_SHARDS", DEFAULT_SHARDS) if is_bitwise else None
    allow_drift = env.get("SAMESTEP_ALLOW_DRIFT") == "1"
    seat = seat_in(env)
    if seat is None:
        return Place(shards=shards, allow_drift=allow_drift)
    return Place(
        rank=seat.index,
        size=seat.count,
        local_rank=seat.local_index,
        local_size=seat.local_count,
        launcher=seat.launcher,
        shards=shards,
        allow_drift=allow_drift,
    )


def join(timeout_s: float = 1800.0) -> tuple[Place, torch.device]:
    """Meet the other ranks of the world that the environment describes, if there are others."""
    place = replace(place_in(os.environ), timeout_s=timeout_s)
    device = device_of(place.local_rank, place.local_size)
    if is_host(device):
        keep_freed_memory()
    if place.size > 1 and not dist.is_initialized():
        seat = seat_in(os.environ)
        assert seat is not None
        seat.check_meeting()
        for name, value in seat.as_torchrun_says().items():
            os.environ.setdefault(name, value)
        try:
            with phase.waiting():
                dist.init_process_group(backend_of(device), timeout=timedelta(seconds=timeout_s))
        except RuntimeError as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            reason = str(error).partition("\n")[0]
            raise LaunchError(f"The {place.size} ranks could not meet at {address}: {reason}") from error
    return place, device


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor; backends do not know every dtype, but all know bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def _bytes(text: str) -> Tensor:
    return torch.tensor(bytearray(text.encode()), dtype=torch.uint8)


def _text(data: Tensor) -> str:
    return data.numpy().tobytes().decode()
