"""What a forward leaves behind in a model, such as running statistics, when shards run by themselves.

Every shard finds the buffers as the step found them. What it changes is averaged over shards, each counting
by its examples, so that running statistics are the same on any number of ranks. Knows nothing of layers: any
buffer that a forward changes is treated alike. A change of a large buffer must show in the first step.
"""

import json

import torch
from torch import Tensor, nn

from samestep.errors import ConfigError, listed
from samestep.world import World

_SMALL = 8192
"""Elements up to which a buffer is looked after whether it has been seen to change or not."""


class _Group:
    """Buffers of one dtype; `start` is what they held before the step, end to end."""

    def __init__(self, places: list[tuple[nn.Module, str]]) -> None:
        self.places = places
        self.keep()

    def keep(self) -> None:
        buffers = self.now()
        self.start = torch.cat([buffer.reshape(-1) for buffer in buffers])
        parts = self.start.split([buffer.numel() for buffer in buffers])
        self.views = [part.view(buffer.shape) for part, buffer in zip(parts, buffers, strict=True)]

    def now(self) -> list[Tensor]:
        # asked for again each time: a layer may have put another tensor in its place
        return [module._buffers[name].detach() for module, name in self.places]  # type: ignore[union-attr]

    def moved(self) -> Tensor:
        now = torch.cat([buffer.reshape(-1) for buffer in self.now()])
        # what did not change has not moved, infinity included
        return torch.where(now == self.start, 0.0, now.double() - self.start.double())

    def restore(self) -> None:
        torch._foreach_copy_(self.now(), self.views)

    def move(self, mean: Tensor) -> None:
        moved = self.start.double() + mean
        if not self.start.is_floating_point():
            moved.round_()
        self.start.copy_(moved)
        self.restore()


class ShardBuffers:
    """The buffers of the models that train; all ranks look after the same ones, in the same order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._models: list[nn.Module] = []
        self._groups: list[_Group] = []
        self._others: dict[str, Tensor] = {}
        self._versions: list[int] = []
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
            for group in self._groups:
                group.keep()
        else:
            self.restore()
        self._versions = [buffer._version for buffer in self._others.values()]

    def restore(self) -> None:
        """Undo what was done to the buffers since the step began."""
        for group in self._groups:
            group.restore()

    def moved(self, num_examples: int) -> list[Tensor]:
        """What the forward changed, times the number of its examples, as flat float64 tensors.

        In a first step, ranks agree here on the buffers that training changes.
        """
        if not self._is_agreed:
            self._agree()
        for name, version in zip(self._others, self._versions, strict=False):
            if self._others[name]._version != version:
                raise ConfigError(
                    f"The buffer {name} began to change after the first step. In bitwise mode, a buffer of "
                    f"more than {_SMALL:,} elements must change in the first step, or never."
                )
        if not num_examples:  # whatever a stand-in batch did, not a number included, counts nothing
            return [torch.zeros_like(group.start, dtype=torch.float64) for group in self._groups]
        return [group.moved().mul_(num_examples) for group in self._groups]

    def settle(self, sums: Tensor, num_examples: int) -> None:
        """Give the buffers what all shards together moved them by."""
        parts = sums.split([group.start.numel() for group in self._groups])
        for group, part in zip(self._groups, parts, strict=True):
            group.move(part / num_examples)

    def _all(self) -> dict[str, tuple[nn.Module, str]]:
        return {
            f"{number}:{prefix}{'.' * bool(prefix)}{name}": (module, name)
            for number, model in enumerate(self._models)
            for prefix, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and not buffer.is_complex()
        }

    def _look_after(self, names: set[str]) -> None:
        by_dtype: dict[torch.dtype, list[tuple[nn.Module, str]]] = {}
        places = self._all()
        for full_name, (module, name) in places.items():
            if full_name in names:
                by_dtype.setdefault(module._buffers[name].dtype, []).append((module, name))  # type: ignore[union-attr]
        self._groups = [_Group(group) for group in by_dtype.values()]
        self._others = {
            full_name.partition(":")[2]: module._buffers[name]  # type: ignore[misc]
            for full_name, (module, name) in places.items()
            if full_name not in names
        }

    def _agree(self) -> None:
        moved = {(id(m), n) for group in self._groups for m, n in _moved_places(group)}
        places = self._all()
        mine = [name for name, (module, key) in places.items() if (id(module), key) in moved]
        everyone = {name for text in self._world.gather_texts(json.dumps(mine)) for name in json.loads(text)}
        small = {name for name, (m, key) in places.items() if m._buffers[key].numel() <= _SMALL}  # type: ignore[union-attr]
        if unknown := sorted(everyone - places.keys()):
            raise ConfigError(f"Other ranks have buffers that this one has not: {listed(unknown)}.")
        starts = {
            (id(module), name): view.clone()
            for group in self._groups
            for (module, name), view in zip(group.places, group.views, strict=True)
        }
        self._look_after(everyone | small)
        for group in self._groups:
            for (module, name), view in zip(group.places, group.views, strict=True):
                view.copy_(starts[id(module), name])
        self._versions = [buffer._version for buffer in self._others.values()]
        self._is_agreed = True


def _moved_places(group: _Group) -> list[tuple[nn.Module, str]]:
    return [
        place
        for place, view, now in zip(group.places, group.views, group.now(), strict=True)
        if not torch.equal(view, now)
    ]
