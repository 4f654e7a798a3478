"""The user's data set as a loader worker sees it: one request a step, randomness keyed by position.

Runs in loader workers as well as in the rank itself. Knows nothing of ranks beyond the shares it is handed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate, get_worker_info

from samestep.data.fingerprint import fingerprint
from samestep.data.generators import Snapshot, Stream, seed_all, seeded
from samestep.data.shard import Cut
from samestep.keys import derive
from samestep.world import Share

Batch = Any
Collate = Callable[[list[Any]], Batch]
_QUIET_AFTER = 8


class Request(NamedTuple):
    """What a rank wants for one step: its shares and the indices of the examples in each.

    An empty share comes without indices, or with one to keep the rank company (see `Loader`).
    """

    shares: list[Share]
    indices: list[list[Any]]


class StepInput(NamedTuple):
    """What a rank works on in one step, turn by turn; a batch is None where the share is empty.

    `collate_draws` says that the collate function was seen to draw random numbers. `seen` tells what a
    stream of examples began with, so that ranks can compare; it is empty otherwise. `unsteady` is the index
    of an example that was not the same when it was asked for again. `start` is where a stream says that the
    batch begins; each worker counts for itself.
    """

    shares: list[Share]
    batches: list[Batch | None]
    collate_draws: bool = False
    seen: str = ""
    unsteady: Any = None
    start: int = 0


class Collator:
    """The user's collate function with a random stream of its own, set for each batch.

    One that was seen to draw nothing is called without that, for speed, under a tripwire: should it ever
    draw, it is called again with its stream, and so it is for every later batch.
    """

    def __init__(self, collate: Collate | None, seed: int) -> None:
        self._collate = collate
        self._seed = seed
        self._num_quiet = 0

    @property
    def draws(self) -> bool:
        """Whether the function was seen to draw random numbers."""
        return self._num_quiet < 0

    def __call__(
        self, examples: list[Any], share: Share, again: Callable[[], list[Any]] | None = None
    ) -> Batch:
        """The batch of the examples; `again` gets them anew, for a second call, where that is possible."""
        if self._collate is None:
            return _collated(examples)
        if again is not None and self._num_quiet >= _QUIET_AFTER:
            before = Snapshot()
            batch = self._collate(examples)
            if not before.has_moved():
                return batch
            before.restore()
            self._num_quiet = -1
            examples = again()  # the first call may have changed them
        with seeded(derive(self._seed, "collate", share.epoch, share.position + share.first)):
            before = Snapshot()
            batch = self._collate(examples)
            self._num_quiet = -1 if self.draws or before.has_moved() else self._num_quiet + 1
        return batch


def _collated(examples: list[Any]) -> Batch:
    """What torch's `default_collate` makes of examples; of tuples of tensors, as most are, in less time."""
    first = examples[0]
    # a worker puts batches into memory that it shares, and that is torch's business
    if type(first) is not tuple or set(map(type, examples)) != {tuple} or get_worker_info() is not None:
        return default_collate(examples)
    columns = list(zip(*examples, strict=False))
    if set(map(len, examples)) != {len(first)} or not all(map(_is_plain, columns)):
        return default_collate(examples)
    return [torch.stack(column) for column in columns]


def _is_plain(column: tuple[Any, ...]) -> bool:
    return (
        set(map(type, column)) == {Tensor} and column[0].layout is torch.strided and not column[0].is_nested
    )


class MapExamples(Dataset[StepInput]):
    """A map-style data set whose random draws depend on (seed, epoch, position) alone.

    Before each example the process-wide generators are set from its key. A data set that was seen to draw
    nothing is fetched without that, for speed, under a tripwire: should it ever draw, the request is
    fetched again with keys, and so is every later one. Torch's own TensorDataset cannot draw, and the rows of
    a batch are taken out of it at once. With `twice`, the first example is asked for again, with the same
    key, to see whether it has randomness of its own.
    """

    def __init__(self, dataset: Any, *, collate: Collate | None, seed: int, twice: bool = False) -> None:
        self._twice = twice
        self._dataset = dataset
        self._collate = Collator(collate, seed)
        self._seed = seed
        self._epoch: int | None = None
        self._num_quiet = 0
        self._is_table = type(dataset) is TensorDataset and collate is None

    def __getitems__(self, request: Request) -> StepInput:
        batches = [
            self._batch(share, indices) if indices else None
            for share, indices in zip(request.shares, request.indices, strict=True)
        ]
        unsteady = None
        if self._twice and request.indices[0] and not self._is_table:
            self._twice = False
            unsteady = self._unsteady(request.shares[0], request.indices[0][0])
        return StepInput(request.shares, batches, self._collate.draws, unsteady=unsteady)

    def _unsteady(self, share: Share, index: Any) -> Any:
        """The index, if its example is another one the second time; None if it is the same."""
        key = derive(self._seed, "example", share.epoch, share.position + share.first)
        prints = []
        for _ in range(2):
            with seeded(key):
                prints.append(fingerprint([self._dataset[index]]))
        return None if prints[0] == prints[1] else index

    def _batch(self, share: Share, indices: list[Any]) -> Batch:
        if self._is_table and type(indices[0]) is int:
            return list(self._dataset[indices])
        fetch = partial(self._fetch, share, indices)
        return self._collate(fetch(), share, again=fetch)

    def _fetch(self, share: Share, indices: list[Any]) -> list[Any]:
        if share.epoch != self._epoch:
            # a worker has its own copy of the data set, which nobody else could tell of the epoch
            self._epoch = share.epoch
            if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
                set_epoch(share.epoch)
        before = Snapshot()
        if self._num_quiet >= _QUIET_AFTER:
            examples = self._fetch_at_once(indices)
            if not before.has_moved():
                return examples
            self._num_quiet = -1
        examples = [
            self._fetch_keyed(index, derive(self._seed, "example", share.epoch, position))
            for position, index in enumerate(indices, start=share.position + share.first)
        ]
        before.restore()
        return examples

    def _fetch_at_once(self, indices: list[Any]) -> list[Any]:
        if callable(fetch := getattr(self._dataset, "__getitems__", None)):
            return list(fetch(indices))
        return [self._dataset[index] for index in indices]

    def _fetch_keyed(self, index: Any, key: int) -> Any:
        seed_all(key)
        if self._num_quiet < 0:
            return self._dataset[index]
        before = Snapshot()
        example = self._dataset[index]
        self._num_quiet = -1 if before.has_moved() else self._num_quiet + 1
        return example


class StreamExamples(IterableDataset[StepInput]):
    """An iterable data set: every rank reads the same stream and keeps its own share of each batch.

    Reading is repeated on every rank; that is the price of a stream which cannot be asked for a position.
    With loader workers each worker makes whole global batches of what its copy of the data set yields, as
    torch's loader does, so that the batches do not depend on the world either.
    """

    def __init__(
        self, dataset: Any, *, collate: Collate | None, seed: int, batch_size: int, cut: Cut
    ) -> None:
        self._dataset = dataset
        self._collate = Collator(collate, seed)
        self._seed = seed
        self._batch_size = batch_size
        self._cut = cut
        self.epoch = 0

    def __iter__(self) -> Iterator[StepInput]:
        worker = get_worker_info()
        stream = Stream(derive(self._seed, "stream", self.epoch, worker.id if worker else 0))
        with stream.active():
            if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
                set_epoch(self.epoch)
            source = iter(self._dataset)
        position = 0
        while True:
            with stream.active():
                examples = list(islice(source, self._batch_size))
            if not examples:
                return
            yield self._step_input(examples, position)
            position += len(examples)

    def _step_input(self, examples: list[Any], position: int) -> StepInput:
        own = self._cut.shares(len(examples), epoch=self.epoch, position=position)
        batches = []
        for share in own:
            turn = examples[share.position - position :]
            # an empty share borrows an example, which the rank has in its hands anyway
            mine = turn[share.first : share.first + share.count] or turn[:1]
            batches.append(self._collate(mine, share))
        seen = fingerprint(examples) if position == 0 else ""
        return StepInput(own, batches, self._collate.draws, seen, start=position)


def pass_on(item: StepInput) -> StepInput:
    """The collate function of torch's loader: the examples above have collated already."""
    return item
