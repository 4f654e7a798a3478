"""Statistics: modules that keep some of what they see in training, whatever they are called.

A module is known by what it does: floating-point buffers of its own are others after its forward pass than
before. Torch's own batch norm does not count the changes of its buffers, so their bits are compared.
"""

from typing import NamedTuple

from torch import Tensor, nn

from samestep.observed import Statistic
from samestep.probe.summaries import bits_print
from samestep.probe.watch import Watch

MOST_LOOKS = 3
"""Forward passes of a module that are looked at before it is taken for one that keeps nothing."""
MOST_ELEMENTS = 2**22


class Before(NamedTuple):
    """A module's own floating-point buffers, by name, and the collectives called, before a forward pass."""

    prints: dict[str, str]
    num_collectives: int


class Statistics:
    """Writes down modules that keep statistics; others tell it when forward passes begin and end."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._num_looks: dict[int, int] = {}

    def before(self, module: nn.Module) -> Before | None:
        """What to compare with later; None if the module need not be looked at."""
        if not module._buffers or not module.training or not self._watch.is_full:
            return None
        if self._num_looks.get(id(module), 0) >= MOST_LOOKS:
            return None
        kept = own_statistics(module)
        if not kept or sum(buffer.numel() for buffer in kept.values()) > MOST_ELEMENTS:
            return None
        prints = {name: bits_print(buffer) for name, buffer in kept.items()}
        return Before(prints, self._watch.num_collectives)

    def after(self, model: int, name: str, module: nn.Module, before: Before) -> None:
        """Compare, and write down a module that has changed its buffers."""
        self._num_looks[id(module)] = self._num_looks.get(id(module), 0) + 1
        now = own_statistics(module)
        changed = [key for key, old in before.prints.items() if key in now and bits_print(now[key]) != old]
        if not changed:
            return
        self._num_looks[id(module)] = MOST_LOOKS
        row = Statistic(
            step=self._watch.step,
            model=model,
            name=name,
            kind=type(module).__name__,
            buffers=tuple(f"{name}.{key}" if name else key for key in changed),
            num_collectives=self._watch.num_collectives - before.num_collectives,
        )
        self._watch.write_some(row)


def own_statistics(module: nn.Module) -> dict[str, Tensor]:
    """The floating-point buffers of a module itself, without those of its children."""
    buffers = module._buffers.items()
    return {name: buffer for name, buffer in buffers if buffer is not None and buffer.is_floating_point()}
