"""What a forward leaves behind in a model, such as running statistics, when shards run by themselves.

Every shard finds the buffers as the step found them. What it changes is averaged over shards, each counting
by its examples, so that running statistics are the same on any number of ranks. Knows nothing of layers: any
buffer that a forward changes is treated alike. Two things are refused by name instead: a large buffer that
does not change in a rank's first shard but later, and a parameter that a forward changes.
"""

import json
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from samestep.errors import ConfigError, listed
from samestep.world import World

_SMALL = 8192
"""Elements up to which a buffer is looked after whether it has been seen to change or not."""

Place = tuple[nn.Module, str]


class _Group:
    """Buffers of one dtype; `start` is what they held before the step, end to end."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.keep()

    def keep(self) -> None:
        buffers = self.now()
        self.start = torch.cat([buffer.reshape(-1) for buffer in buffers])
        self.origin = self.find_origin()
        parts = self.start.split([buffer.numel() for buffer in buffers])
        self.views = [part.view(buffer.shape) for part, buffer in zip(parts, buffers, strict=True)]

    def now(self) -> list[Tensor]:
        # asked for again each time: a layer may have put another tensor in its place
        return [_real(_buffer(place).detach()) for place in self.places]

    def moved(self) -> Tensor:
        now = torch.cat([buffer.reshape(-1) for buffer in self.now()])
        return torch.where(now == self.start, 0.0, now.double() - self.origin)

    def restore(self) -> None:
        torch._foreach_copy_(self.now(), self.views)

    def move(self, mean: Tensor) -> None:
        if self.start.is_floating_point():
            moved = (self.origin + mean).to(self.start.dtype)
        else:  # by whole numbers, of which float64 has too few for all of int64
            moved = self.start + mean.round().to(self.start.dtype)
        # what nobody changed keeps its bits
        self.start.copy_(torch.where(mean == 0, self.start, moved))
        self.restore()

    def find_origin(self) -> Tensor:
        """From where moves are counted: from 0 where a buffer begins at infinity, as those of extremes do."""
        return self.start.double().nan_to_num_(0.0, 0.0, 0.0)


class ShardBuffers:
    """The buffers of the models that train; all ranks look after the same ones, in the same order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._models: list[nn.Module] = []
        self._groups: list[_Group] = []
        self._others: dict[str, Place] = {}
        self._parameters: list[tuple[str, nn.Parameter]] = []
        self._seen: list[tuple[int, int]] = []
        self._is_agreed = False

    def follow(self, model: nn.Module) -> None:
        """Look after the buffers of `model` as well, from the next step on."""
        self._models.append(model)
        self._is_agreed = False

    def begin(self, *, is_new_step: bool) -> None:
        """Make ready for the forward of a shard: all shards of a step find the buffers alike."""
        if is_new_step:
            if not self._is_agreed:
                self._look_after(set(self._all()))
                self._parameters = [pair for model in self._models for pair in model.named_parameters()]
            for group in self._groups:
                group.keep()
        else:
            self.restore()
        self._seen = list(self._versions())

    def restore(self) -> None:
        """Undo what was done to the buffers since the step began."""
        for group in self._groups:
            group.restore()

    def moved(self, num_examples: int) -> list[Tensor]:
        """What the forward changed, times the number of its examples, as flat float64 tensors.

        In a first step, ranks agree here on the buffers that training changes.
        """
        self._refuse_changes()
        if not self._is_agreed:
            self._agree()
        if not num_examples:  # whatever a stand-in batch did, not a number included, counts nothing
            return [torch.zeros_like(group.start, dtype=torch.float64) for group in self._groups]
        return [group.moved().mul_(num_examples) for group in self._groups]

    def settle(self, sums: Tensor, num_examples: int) -> None:
        """Give the buffers what all shards together moved them by."""
        parts = sums.split([group.start.numel() for group in self._groups])
        for group, part in zip(self._groups, parts, strict=True):
            group.move(part / num_examples)

    def _all(self) -> dict[str, Place]:
        return {
            f"{number}:{prefix}{'.' * bool(prefix)}{name}": (module, name)
            for number, model in enumerate(self._models)
            for prefix, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        }

    def _look_after(self, names: set[str]) -> None:
        by_dtype: dict[torch.dtype, list[Place]] = {}
        self._others = {}
        for name, place in self._all().items():
            if name in names and _can_be_put_back(_buffer(place)):
                by_dtype.setdefault(_real(_buffer(place)).dtype, []).append(place)
            else:
                self._others[name.partition(":")[2]] = place
        self._groups = [_Group(places) for places in by_dtype.values()]

    def _versions(self) -> Iterator[tuple[int, int]]:
        """What changes with every parameter, and every buffer that is not looked after, when that changes."""
        for _, parameter in self._parameters:
            yield parameter.data_ptr(), parameter._version
        for place in self._others.values():
            buffer = _buffer(place)
            yield id(buffer), buffer._version

    def _refuse_changes(self) -> None:
        now = list(self._versions())
        if now == self._seen:
            return
        changed = next(i for i, (a, b) in enumerate(zip(now, self._seen, strict=True)) if a != b)
        name = [*(name for name, _ in self._parameters), *self._others][changed]
        if changed < len(self._parameters):
            raise ConfigError(
                f"The forward changes the parameter {name}. In bitwise mode each shard would change it once "
                "more: make it a buffer (register_buffer), which is seen to, or change it after the step."
            )
        raise ConfigError(
            f"The forward changes the buffer {name}, which has more than {_SMALL:,} elements or overlaps "
            "itself, and did not do so in the first shard of this rank. In bitwise mode it must, or never."
        )

    def _agree(self) -> None:
        starts = {
            place: view.clone()
            for group in self._groups
            for place, view in zip(group.places, group.views, strict=True)
        }
        moved = {place for group in self._groups for place in _moved_places(group)}
        places = self._all()
        mine = [name for name, place in places.items() if place in moved]
        everyone = {name for text in self._world.gather_texts(json.dumps(mine)) for name in json.loads(text)}
        if unknown := sorted(everyone - places.keys()):
            raise ConfigError(f"Other ranks have buffers that this one has not: {listed(unknown)}.")
        small = {name for name, place in places.items() if _buffer(place).numel() <= _SMALL}
        self._look_after(everyone | small)
        for group in self._groups:
            for place, view in zip(group.places, group.views, strict=True):
                if place in starts:  # one that had no value before this forward begins with it
                    view.copy_(starts[place])
            group.origin = group.find_origin()
        self._is_agreed = True


def _buffer(place: Place) -> Tensor:
    module, name = place
    buffer = module._buffers[name]
    assert buffer is not None
    return buffer


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _can_be_put_back(buffer: Tensor) -> bool:
    """Whether its elements can be written one by one: not where it is sparse, or expanded over itself."""
    return buffer.layout == torch.strided and not any(
        stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True)
    )


def _moved_places(group: _Group) -> list[Place]:
    return [
        place
        for place, view, now in zip(group.places, group.views, group.now(), strict=True)
        if not torch.equal(view, now)
    ]
