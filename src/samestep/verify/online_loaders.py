"""Loaders as all ranks know them: which loader of one rank is which of another, and what is known of it.

Ranks count their loaders in the order of first use, and one rank may use some that others do not: so they are
matched by the line that made them and by what they load.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from samestep.observations import mixed
from samestep.observed import Batch, Loader, Loss, PassEnd, Row

MOST_LOADERS = 256
_ONCE_EACH = frozenset({"SequentialSampler", "RandomSampler", "SeedableRandomSampler", "DistributedSampler"})
_SPREADING = "DistributedSampler"
_PLAIN_BATCHES = frozenset({None, "BatchSampler"})

_Base = tuple[str, str, int | None, str]
Key = tuple[str, str, int | None, str, int]
"""A loader as all ranks know it: line, data set, its length, sampler, and the how-manieth of these it is."""


@dataclass
class Shared:
    """One loader on all ranks, and what was seen of it so far.

    `trained_by` are the ranks that train from it, `num_equal` counts, by pairs of ranks, what they had in
    common without a break, `num_whole` the passes that were the whole data set.
    """

    rows: dict[int, Loader] = field(default_factory=dict)
    trained_by: set[int] = field(default_factory=set)
    passes: dict[int, dict[int, PassEnd]] = field(default_factory=dict)
    num_equal: Counter[tuple[int, int]] = field(default_factory=Counter)
    num_whole: int = 0
    last_whole: int | None = None
    is_same_told: bool = False
    is_count_told: bool = False

    @property
    def row(self) -> Loader:
        """How the first of the ranks describes it."""
        return self.rows[min(self.rows)]

    @property
    def is_one_data_set(self) -> bool:
        """Whether the data sets of all ranks hold the same."""
        contents = {row.contents for row in self.rows.values()}
        return len(contents) == 1 and contents != {""}

    @property
    def is_once_each(self) -> bool:
        """Whether the sampler is one of those that are there to hand out each example once."""
        return all(
            row.sampler in _ONCE_EACH
            and row.sampler_settings.get("replacement", "False") == "False"
            and (row.sampler == _SPREADING or row.num_drawn == row.num_examples)
            for row in self.rows.values()
        )

    @property
    def num_may_drop(self) -> int | None:
        """The examples that one rank with the whole batch would leave over, too; None if not known."""
        if self.row.batch_sampler not in _PLAIN_BATCHES:
            return None
        batch_size = sum(row.batch_size or 0 for row in self.rows.values())
        return (self.row.num_examples or 0) % max(1, batch_size) if self.row.drop_last else 0

    @property
    def data(self) -> str:
        """The data set in words."""
        size = "" if self.row.num_examples is None else f", {self.row.num_examples} examples"
        return f"the data set ({self.row.dataset}{size})"

    @property
    def since(self) -> str:
        """When all was well, in words."""
        return "no pass was whole before" if self.last_whole is None else f"pass {self.last_whole} was whole"


class SharedLoaders:
    """All loaders of a run; the oldest are forgotten when there are too many."""

    def __init__(self) -> None:
        self._shared: dict[Key, Shared] = {}
        self._keys: dict[tuple[int, int], Key] = {}
        self._counts: Counter[tuple[int, _Base]] = Counter()
        self._last: dict[int, Shared] = {}

    def take(self, rank: int, row: Row) -> None:
        """Learn from a row which loaders there are, and from which of them is trained."""
        if isinstance(row, Loader):
            self._meet(rank, row)
        elif isinstance(row, Batch):
            if (shared := self.of(rank, row.loader)) is not None:
                self._last[rank] = shared
        elif isinstance(row, Loss) and rank in self._last:
            # the batch that came last before a backward pass is one that is trained on
            self._last[rank].trained_by.add(rank)

    def of(self, rank: int, loader: int) -> Shared | None:
        """The loader that a rank knows by that number."""
        key = self._keys.get((rank, loader))
        return None if key is None else self._shared.get(key)

    def _meet(self, rank: int, row: Loader) -> None:
        base = row.where, row.dataset, row.num_examples, row.sampler
        key: Key = (*base, self._counts[rank, base])
        self._counts[rank, base] += 1
        self._keys[rank, row.loader] = key
        self._shared.setdefault(key, Shared()).rows[rank] = row
        if len(self._shared) > MOST_LOADERS:
            gone = next(iter(self._shared))
            del self._shared[gone]
            self._keys = {where: key for where, key in self._keys.items() if key != gone}


@lru_cache(maxsize=8)
def whole_multiset(num_examples: int) -> int:
    """The `multiset_print` of the indices of a whole data set, worked out in pieces."""
    import numpy as np

    piece = 2**20
    total = 0
    for start in range(0, num_examples, piece):
        indices = np.arange(start, min(start + piece, num_examples), dtype=np.int64)
        total += int(mixed(indices).sum(dtype=np.uint64))
    return total % 2**64
