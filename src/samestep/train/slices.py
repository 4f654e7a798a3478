"""Slices: the part of the parameters that a rank alone updates, and the way of the new weights to all ranks.

Parameters of one dtype and device are put in a flat order, which is cut into as many equal slices as there
are ranks. What the slice of this rank holds of a parameter is a *piece*: a parameter of its own, in the
memory of the model's. An optimizer that treats every element by itself does with pieces what it would do with
whole parameters, and keeps state for pieces only. Knows nothing of losses, and refuses to know optimizers.

Cuts are a multiple of `_UNIT` elements into a parameter. Kernels work on a few elements at a time and treat a
remainder by other instructions; so it stays the same elements that are a remainder, and the bits the same.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from samestep.train.exchange import view_of
from samestep.world import Pending, World

_UNIT = 64
_LARGE_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Elements `first` to `last` of a parameter, in the order of its memory: `held` is what is updated."""

    parameter: Parameter
    first: int
    last: int
    held: Parameter


class SliceBucket:
    """Parameters that travel together: first their gradients to the owners of slices, then new weights.

    Large ones are sent from where they lie. Small ones go through `pack`, since each by itself would cost
    more than its size; they come first in the flat order, in which `offsets` are.
    """

    def __init__(self, parameters: list[Parameter], world: World) -> None:
        self.parameters = sorted(parameters, key=lambda p: p.nbytes >= _LARGE_BYTES)
        self.missing = {id(parameter) for parameter in parameters}
        self.pending: Pending | None = None
        self._world = world
        sizes = [_up(parameter.numel(), _UNIT) for parameter in self.parameters]
        self.offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self.numel = sum(sizes)
        length = _up(-(-self.numel // world.size), _UNIT)
        self._bounds = [(rank * length, (rank + 1) * length) for rank in range(world.size)]
        self._num_small = sum(parameter.nbytes < _LARGE_BYTES for parameter in parameters)
        like = parameters[0]
        self._pack = torch.zeros(sum(sizes[: self._num_small]), dtype=like.dtype, device=like.device)
        self._small = self.whole(self._pack, self._num_small)
        self.pieces: list[Piece] = []
        for parameter, offset in zip(self.parameters, self.offsets, strict=True):
            first, last = _within(self._bounds[world.rank], offset, parameter.numel())
            if first < last:
                part = in_memory_order(parameter)[first:last]
                held = Parameter(part if parameter.dim() else part.view(()))
                self.pieces.append(Piece(parameter=parameter, first=first, last=last, held=held))
        self._at = [parameter.data_ptr() for parameter in self.parameters]
        self._gradients: dict[int, Tensor] = {}

    def whole(self, flat: Tensor, count: int | None = None) -> list[Tensor]:
        """What a tensor in the flat order holds for each parameter, or the first ones, in its shape."""
        return [
            view_of(flat[offset : offset + parameter.numel()], parameter)
            for parameter, offset in list(zip(self.parameters, self.offsets, strict=True))[:count]
        ]

    def slices_of(self, flat: Tensor) -> list[list[Tensor]]:
        """A tensor in the flat order, by rank."""
        return self._by_rank([(0, flat)])

    def launch(self, world: World) -> None:
        """Send the gradients to the owners of their slices."""
        small, large = self.parameters[: self._num_small], self.parameters[self._num_small :]
        if any(parameter.grad is None for parameter in small):
            self._pack.zero_()
        ready = [i for i, parameter in enumerate(small) if parameter.grad is not None]
        if ready:
            gradients = [small[i].grad for i in ready]
            torch._foreach_copy_([self._small[i] for i in ready], gradients)  # type: ignore[arg-type]
        wholes = {id(p): view for p, view in zip(small, self._small, strict=True)}
        wholes |= {id(parameter): _laid_out(parameter) for parameter in large}
        self._gradients = {key: in_memory_order(whole) for key, whole in wholes.items()}
        memories = [self._gradients[id(parameter)] for parameter in large]
        self.pending = world.sum_slices_(self._slices(memories))

    def gradient_of(self, piece: Piece) -> Tensor:
        """The gradient of a piece, once it is summed."""
        return self._gradients[id(piece.parameter)][piece.first : piece.last].view(piece.held.shape)

    def abandon(self) -> None:
        """Forget what was sent."""
        self.finish()
        self._gradients = {}

    def finish(self) -> None:
        """Wait until the sums of this rank's slice are there."""
        if self.pending is not None:
            self.pending.wait()
        self.pending = None
        self.missing = {id(parameter) for parameter in self.parameters}

    def follow(self) -> None:
        """Have pieces lie in the memory of their parameters, should these have moved."""
        at = [parameter.data_ptr() for parameter in self.parameters]
        if at != self._at:
            self._at = at
            for piece in self.pieces:
                part = in_memory_order(piece.parameter)[piece.first : piece.last]
                piece.held.data = part.view(piece.held.shape)

    def send_weights(self) -> None:
        """Send the weights of this rank's slice to all."""
        self._gradients = {}
        small, large = self.parameters[: self._num_small], self.parameters[self._num_small :]
        if small:
            torch._foreach_copy_(self._small, [parameter.detach() for parameter in small])
        self.pending = self._world.gather_slices_(self._slices([in_memory_order(p) for p in large]))

    def take_weights(self) -> None:
        """Give the parameters the weights of the other ranks' slices."""
        self.finish()
        if self._small:
            small = [parameter.detach() for parameter in self.parameters[: self._num_small]]
            torch._foreach_copy_(small, self._small)

    def _slices(self, memories: list[Tensor]) -> list[list[Tensor]]:
        """The pack and the memory of the large parameters, by rank."""
        return self._by_rank([(0, self._pack), *zip(self.offsets[self._num_small :], memories, strict=True)])

    def _by_rank(self, placed: Sequence[tuple[int, Tensor]]) -> list[list[Tensor]]:
        """Of flat tensors that begin at an offset each, what belongs to which rank."""
        cut = []
        for bounds in self._bounds:
            ranges = [(tensor, *_within(bounds, offset, len(tensor))) for offset, tensor in placed]
            # something has to be there, to tell the dtype
            parts = [tensor[first:last] for tensor, first, last in ranges if first < last]
            cut.append(parts or [placed[0][1][:0]])
        return cut


class Slices:
    """The pieces of this rank over all buckets."""

    def __init__(self, buckets: Sequence[SliceBucket]) -> None:
        self.buckets = buckets
        self.pieces = [piece for bucket in buckets for piece in bucket.pieces]
        self.held = [piece.held for piece in self.pieces]
        self._held_of = {id(piece.parameter): piece.held for piece in self.pieces}

    @contextmanager
    def in_place_of_parameters(self, optimizer: Optimizer) -> Iterator[None]:
        """Inside, the optimizer has pieces for its parameters."""
        wholes = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            known = (self._held_of.get(id(parameter)) for parameter in group["params"])
            group["params"] = [held for held in known if held is not None]
        try:
            yield
        finally:
            for group, whole in zip(optimizer.param_groups, wholes, strict=True):
                group["params"] = whole

    def hand_out(self) -> None:
        """Give all ranks the weights that this one has updated, and take theirs; gradients are gone then."""
        for held in self.held:
            held.grad = None
        for bucket in self.buckets:
            bucket.send_weights()
        for bucket in self.buckets:
            bucket.take_weights()


def in_memory_order(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor as they lie in memory, whatever its shape and layout."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements of a tensor fill its memory without gaps, each once."""
    if tensor.layout != torch.strided:
        return False
    strides = torch.empty_like(tensor, device="meta").stride()
    return all(size == 1 or a == b for size, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))


def _within(bounds: tuple[int, int], offset: int, length: int) -> tuple[int, int]:
    """Where `bounds` begin and end in something of this length that lies at `offset`."""
    first, last = (min(max(bound - offset, 0), length) for bound in bounds)
    return first, last


def _laid_out(parameter: Parameter) -> Tensor:
    """The gradient of a parameter, laid out in memory as that is; zeros if it has none."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter.detach())
    if gradient.stride() != parameter.stride():
        return torch.empty_like(parameter.detach()).copy_(gradient)
    return gradient


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
