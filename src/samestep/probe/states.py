"""States: parameters and buffers before the first step and after each."""

from collections.abc import Iterator
from hashlib import blake2b

from torch import Tensor, nn

from samestep.observed import Evaluated, Replica, State
from samestep.probe.naming import Known, Names, plain_name
from samestep.probe.summaries import bits_print, summary
from samestep.probe.watch import Watch


class States:
    """Writes down the models that were called so far; it has nothing to install, others tell it when."""

    def __init__(self, watch: Watch, names: Names) -> None:
        self._watch = watch
        self._names = names
        self._begun: set[int] = set()
        self._evaluated: set[tuple[int, int]] = set()

    def write_first(self, known: Known, root: nn.Module) -> None:
        """Write down what a model's training began with; once for each model."""
        if known.number not in self._begun:
            self._begun.add(known.number)
            self._write(0, known, root)

    def write_after_step(self) -> None:
        """Write down all models: each tensor of a step in full, one print over all for sampled ones."""
        watch = self._watch
        for known, root in self._names.models:
            if watch.is_full:
                self._write(watch.step, known, root)
            elif watch.is_looked_into:
                digest = blake2b(digest_size=8)
                for name, _, tensor in _tensors(root):
                    digest.update(f"{name} {bits_print(tensor)} ".encode("utf-8", "backslashreplace"))
                watch.write(Replica(step=watch.step, model=known.number, print=digest.hexdigest()))

    def write_evaluated(self, known: Known, root: nn.Module) -> None:
        """Write down with which parameters a model is evaluated; once for each step and model."""
        if (known.number, self._watch.step) in self._evaluated or next(root.parameters(), None) is None:
            return
        self._evaluated.add((known.number, self._watch.step))
        digest = blake2b(digest_size=8)
        for name, role, tensor in _tensors(root):
            if role == "parameter":
                digest.update(f"{name} {bits_print(tensor)} ".encode("utf-8", "backslashreplace"))
        self._watch.write(Evaluated(step=self._watch.step, model=known.number, print=digest.hexdigest()))

    def _write(self, step: int, known: Known, root: nn.Module) -> None:
        for name, role, tensor in _tensors(root):
            row = State(step=step, model=known.number, name=name, role=role, summary=summary(tensor, name))
            self._watch.write(row)


def _tensors(root: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in root.named_parameters():
        yield plain_name(name), "parameter", parameter
    for name, buffer in root.named_buffers():
        yield plain_name(name), "buffer", buffer
