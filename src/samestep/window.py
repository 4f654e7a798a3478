"""Window: memory that the ranks of one machine share, through which they hand each other what is on the host.

Over the loopback network every byte is copied into the kernel and out again; here it is copied once, and read
where it lies. Knows bytes, sums and rounds; nothing of process groups, models or training.

In a round every rank writes into its own memory, counts up to say so, and reads from the memory of each
other rank once that has counted, too. The memory has two halves that take turns. A rank that another has seen
in round t has read everything of round t - 1, so that the half of that round can be written to again in
round t + 1; nobody has to say that it has read.

Ranks that are late are waited for by looking again, ever more seldom. One that is gone has lost the lock on
its memory. All ranks use a window from one thread, with the same calls in the same order; these are called
as in torch.distributed, so that whoever watches collectives there finds them here, too.
"""

import contextlib
import fcntl
import mmap
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

_FOLDER = Path("/dev/shm")  # noqa: S108 (files are made there exclusively, under names that nobody can guess)
_HEADER_BYTES = 4096
_HALF_BYTES = 6 << 20
_SMALL_BYTES = 64 << 10
"""Up to so many bytes are added up by everybody; of more, each of three or more ranks adds up a slice."""
_ALIGNMENT = 64

_EAGER_S = 5e-5
_LONGEST_NAP_S = 1e-3
_LOOK_AROUND_S = 1.0


Slices = Sequence[Sequence[Tensor]]
"""By rank, the flat tensors of one dtype that make up what belongs to it; the same lengths on all ranks."""


class _Memory:
    """The memory of one rank: a count of rounds, what was said with either half, and the halves.

    `descriptor` stays open for the lock, which a process loses when it ends, however it does.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        size = _HEADER_BYTES + 2 * _HALF_BYTES
        memory = mmap.mmap(descriptor, size)
        self.words = memoryview(memory)[:24].cast("Q")
        halves = torch.frombuffer(memory, dtype=torch.uint8)[_HEADER_BYTES:]
        self.halves = halves[:_HALF_BYTES], halves[_HALF_BYTES:]

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class Window:
    """The memories of all ranks, by rank, seen from one of them; `patience_s` is how long one may be late."""

    def __init__(self, rank: int, memories: Sequence[_Memory], *, patience_s: float) -> None:
        self._rank = rank
        self._size = len(memories)
        self._memories = memories
        self._others = [other for other in range(self._size) if other != rank]
        self._patience_s = patience_s
        self._round = 0

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks; added in their order, so the same bits on all."""
        flat = tensor.detach().reshape(-1)
        head = 0
        if self._size > 2 and tensor.nbytes > _SMALL_BYTES:
            head = flat.numel() // self._size * self._size
            slices = [[part] for part in flat[:head].chunk(self._size)]
            self.reduce_scatter(slices)
            self.all_gather(slices)
        for part in flat[head:].split(_HALF_BYTES // flat.element_size()):
            self._begin(part.nbytes)
            self._half_of(self._rank, part).copy_(part)
            self._meet(part.nbytes)
            add_in_order([self._half_of(rank, part) for rank in range(self._size)], part)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view_as(tensor))

    def reduce_scatter(self, slices: Slices) -> None:
        """Make this rank's slice its sum over all ranks; spoils no other."""
        own = slices[self._rank]
        longest, width = _longest(slices), own[0].element_size()
        step = max(1, _HALF_BYTES // self._size // _ALIGNMENT * _ALIGNMENT // width)
        for start in range(0, longest, step):
            self._begin(longest * width)
            mine = self._regions(self._rank, own[0].dtype, step)
            for other in self._others:
                for at, piece in _pieces(slices[other], start, start + step):
                    mine[other][at : at + len(piece)].copy_(piece)
            self._meet(longest * width)
            regions = [self._regions(rank, own[0].dtype, step)[self._rank] for rank in range(self._size)]
            for at, piece in _pieces(own, start, start + step):
                parts = [region[at : at + len(piece)] for region in regions]
                parts[self._rank] = piece
                add_in_order(parts, piece)

    def all_gather(self, slices: Slices) -> None:
        """Fill the slices of the other ranks with what those have there."""
        own = slices[self._rank]
        longest, width = _longest(slices), own[0].element_size()
        step = _HALF_BYTES // width
        for start in range(0, longest, step):
            self._begin(longest * width)
            mine = self._half(self._rank).view(own[0].dtype)
            for at, piece in _pieces(own, start, start + step):
                mine[at : at + len(piece)].copy_(piece)
            self._meet(longest * width)
            for other in self._others:
                theirs = self._half(other).view(own[0].dtype)
                for at, piece in _pieces(slices[other], start, start + step):
                    piece.copy_(theirs[at : at + len(piece)])

    def _begin(self, says: int) -> None:
        """Begin a round; what it says to the others goes with its half."""
        self._round += 1
        self._memories[self._rank].words[1 + self._round % 2] = says

    def _meet(self, expected: int) -> None:
        """Count this round, and wait for the others to do so; all should say the same of it."""
        # x86 shows writes to memory in the order in which they were made: the half before the count
        self._memories[self._rank].words[0] = self._round
        for other in self._others:
            self._await(other)
        said = [memory.words[1 + self._round % 2] for memory in self._memories]
        if any(number != expected for number in said):
            raise RuntimeError(
                f"Ranks have different things to exchange, by rank {said} bytes: they do not do the same "
                "collectives in the same order."
            )

    def _await(self, other: int) -> None:
        words, number = self._memories[other].words, self._round
        if words[0] >= number:
            return
        began = time.monotonic()
        look_around_s = _LOOK_AROUND_S
        while words[0] < number:
            waited = time.monotonic() - began
            if waited < _EAGER_S:
                continue
            # not sched_yield, after which everybody else on a busy machine comes first
            time.sleep(min(_LONGEST_NAP_S, waited / 8))
            if waited > look_around_s:
                look_around_s += _LOOK_AROUND_S
                self._refuse_gone(other)
                if waited > self._patience_s:
                    raise RuntimeError(f"Timed out waiting {waited:.0f} s to recv from rank {other}.")

    def _refuse_gone(self, other: int) -> None:
        descriptor = self._memories[other].descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return
        raise RuntimeError(f"Connection closed by peer: rank {other} ended in the middle of an exchange.")

    def _half(self, rank: int) -> Tensor:
        return self._memories[rank].halves[self._round % 2]

    def _regions(self, rank: int, dtype: torch.dtype, step: int) -> list[Tensor]:
        """A rank's half cut into a region for each rank."""
        half = self._half(rank).view(dtype)
        return [half[number * step : (number + 1) * step] for number in range(self._size)]

    def _half_of(self, rank: int, like: Tensor) -> Tensor:
        """The beginning of a rank's half, as something like `like`."""
        return self._half(rank)[: like.nbytes].view(like.dtype).view(like.shape)


def meet(rank: int, gather: Callable[[str], list[str]], *, patience_s: float) -> Window | None:
    """A window of the ranks that `gather` gathers texts from; None on all where some cannot share memory."""
    name = f"samestep-{secrets.token_hex(16)}"
    own = _make(_FOLDER / name)
    try:
        names = gather(name if own is not None else "")
        memories = [own if other == name else _open(_FOLDER / other) for other in names]
        found = [memory for memory in memories if memory is not None]
        is_open = len(found) == len(names)
        if not all(gather("shared" if is_open else "")):
            return None
        return Window(rank, found, patience_s=patience_s)
    finally:
        # whoever has it open keeps it; nothing is left behind, however the ranks end
        (_FOLDER / name).unlink(missing_ok=True)


def _make(path: Path) -> _Memory | None:
    # other processors may show a count before the bytes that it is about
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # taken at once: a place that turns out to be full would end the process later
        os.posix_fallocate(descriptor, 0, _HEADER_BYTES + 2 * _HALF_BYTES)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return _Memory(descriptor)
    except (OSError, AttributeError):
        return None


def _open(path: Path) -> _Memory | None:
    try:
        return _Memory(os.open(path, os.O_RDWR))
    except (OSError, ValueError):
        return None


def _longest(slices: Slices) -> int:
    return max(sum(map(len, parts)) for parts in slices)


def _pieces(tensors: Sequence[Tensor], start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
    """What lies from `start` to `stop` in tensors end to end: where in that range, and the piece."""
    offset = 0
    for tensor in tensors:
        first, last = max(start, offset), min(stop, offset + len(tensor))
        if first < last:
            yield first - start, tensor[first - offset : last - offset]
        offset += len(tensor)


def add_in_order(parts: Sequence[Tensor], out: Tensor) -> None:
    """The sum of the parts in their order, in `out`, which may be one of them."""
    if len(parts) == 2:
        torch.add(parts[0], parts[1], out=out)
        return
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    out.copy_(total)
