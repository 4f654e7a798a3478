"""Translation: examples of one run in terms of another, by their prints."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from samestep.observed import Batch, Loader, PassEnd, Row


class Dictionary:
    """Which print belongs to which index of a data set, as far as it was seen."""

    def __init__(self) -> None:
        self._prints: dict[int, str] = {}
        self._indices: dict[str, set[int]] = defaultdict(set)

    def learn(self, batch: Batch) -> None:
        if batch.indices is not None and len(batch.indices) == len(batch.examples):
            for index, name in zip(batch.indices, batch.examples, strict=True):
                self._prints.setdefault(index, name)
                self._indices[name].add(index)

    def agrees(self, batch: Batch) -> bool:
        """Whether a batch's examples are those that its indices had here, or others that were not seen."""
        return (
            batch.indices is not None
            and len(batch.indices) == len(batch.examples)
            and all(
                self._prints.get(i, name) == name
                for i, name in zip(batch.indices, batch.examples, strict=True)
            )
        )

    def indices(self, names: Iterable[str]) -> tuple[int, ...] | None:
        """The indices of prints that belong to one each; None if any does not."""
        found = [self._indices.get(name, set()) for name in names]
        return tuple(next(iter(one)) for one in found) if found and all(len(o) == 1 for o in found) else None


def translated(
    rows: Iterable[Row], loaders: Mapping[int, Loader], dictionaries: Mapping[int, Dictionary]
) -> Iterator[Row]:
    """Rows whose batches have the reference's indices: an example is known by its print.

    Indices are those of a rank's own data set, which may be a part of the whole, and a rank may keep a part
    of what its sampler drew. What the reference has not seen keeps its index if data sets are of one length.
    """
    lengths: dict[int, bool] = {}
    for row in rows:
        if isinstance(row, Loader) and row.loader in loaders:
            lengths[row.loader] = loaders[row.loader].num_examples == row.num_examples
        elif isinstance(row, Batch) and row.loader in lengths:
            row = _in_terms_of(dictionaries.get(row.loader, Dictionary()), row, lengths[row.loader])
        elif isinstance(row, PassEnd) and not lengths.get(row.loader, True):
            row = replace(row, multiset=None)
        yield row


def _in_terms_of(known: Dictionary, batch: Batch, is_of_one_length: bool) -> Batch:
    if known.agrees(batch) and is_of_one_length:
        return batch
    indices = known.indices(batch.examples)
    if indices is not None:
        return replace(batch, indices=indices)
    is_whole = batch.indices is not None and len(batch.indices) == len(batch.examples)
    return batch if is_of_one_length and (is_whole or not batch.examples) else replace(batch, indices=None)
