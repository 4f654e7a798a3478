"""Feeding: which loaders are trained on and which are evaluated, and which batch went into which step.

Told by the order of things: batches are handed out, models are called, backward passes begin. A program may
fetch a batch ahead, take several batches for one backward pass, or several backward passes on one batch.
"""

from collections import Counter, defaultdict

from samestep.observed import Batch


class Feeding:
    """Takes in what happened in the order in which it did; asked when all is over."""

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._num_batches: Counter[int] = Counter()
        self._num_trained: Counter[int] = Counter()
        self._num_evaluated: Counter[int] = Counter()
        self._passes: dict[tuple[int, int], list[Batch]] = defaultdict(list)
        self._began: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        """By pass, how many backward passes there had been when its last batch came."""
        self._losses: list[int] = []

    def hand_out(self, batch: Batch) -> None:
        """A loader handed out a batch."""
        self._pending.append(batch.loader)
        self._num_batches[batch.loader] += 1
        self._began.setdefault((batch.loader, batch.number), len(self._losses))
        self._last[batch.loader, batch.number] = len(self._losses)
        self._passes[batch.loader, batch.number].append(batch)

    def evaluate(self) -> None:
        """A model was called to evaluate, on the batch that came last."""
        if self._pending:
            self._num_evaluated[self._pending.pop()] += 1

    def train(self, step: int) -> None:
        """A backward pass began, on batches that came since the one before."""
        self._losses.append(step)
        self._num_trained.update(set(self._pending))
        self._pending = []

    @property
    def training(self) -> set[int]:
        """Loaders that are trained on: backward passes follow their batches, and not just by chance."""
        most = max(self._num_trained.values(), default=0)
        return {
            loader
            for loader, count in self._num_trained.items()
            if count > self._num_evaluated[loader]
            and (2 * count >= most or 2 * count >= self._num_batches[loader])
        }

    @property
    def evaluation(self) -> set[int]:
        """Loaders that are evaluated only."""
        return {loader for loader, count in self._num_evaluated.items() if count} - self.training

    def shared_out(self) -> list[tuple[int, Batch]]:
        """Batches that were trained on, each with its step."""
        found = []
        training = self.training
        for (loader, number), batches in self._passes.items():
            if loader not in training:
                continue
            begins, last = self._began[loader, number], self._last[loader, number]
            after = [n for (other, _), n in self._began.items() if other in training and n > last]
            losses = self._losses[begins : min(after, default=len(self._losses))]
            found += _assigned(batches, losses)
        return found


def _assigned(batches: list[Batch], losses: list[int]) -> list[tuple[int, Batch]]:
    """The batches of a pass with the steps of the backward passes that came of them."""
    if not losses:
        return [(batch.step, batch) for batch in batches]
    # a batch or two may have been fetched ahead of what was seen
    if len(losses) * 2 > len(batches):
        a_batch = max(1, round(len(losses) / len(batches)))
        return [(losses[i * a_batch], b) for i, b in enumerate(batches) if i * a_batch < len(losses)]
    a_loss = round(len(batches) / len(losses))
    return [(losses[i // a_loss], b) for i, b in enumerate(batches) if i // a_loss < len(losses)]
