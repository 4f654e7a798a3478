"""Examples that are seeded: what is drawn at random while one is fetched depends on its index only."""

from collections.abc import Callable
from operator import index as whole
from typing import Any

from torch.utils.data._utils import fetch

from samestep.data.fingerprint import fingerprint
from samestep.probe.generators import Generators, seed_all
from samestep.probe.replacing import Replacements


class ExamplesSeeded:
    """Seeds the generators by the index of each example, and puts them back when it is there.

    Holds for data sets with an index, in this process and in workers. What a data set draws from a generator
    of its own, and what collating draws, stays as it is.
    """

    def __init__(self) -> None:
        self._replaced = Replacements()

    def install(self) -> None:
        self._replaced.wrap(fetch._MapDatasetFetcher, "fetch", _around)

    def uninstall(self) -> None:
        self._replaced.undo()


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    def fetch_of(fetcher: Any, *args: Any, **kwargs: Any) -> Any:
        own = fetcher.dataset
        many = getattr(own, "__getitems__", None)
        fetcher.dataset = _SeededAtOnce(own, many) if many else _Seeded(own)
        try:
            return original(fetcher, *args, **kwargs)
        finally:
            fetcher.dataset = own

    return fetch_of


class _Seeded:
    """A data set as a fetcher sees it."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getitem__(self, index: Any) -> Any:
        return _drawn(index, lambda: self._own[index])


class _SeededAtOnce(_Seeded):
    """One that can give many examples at once: it is asked for one at a time, if it can do that."""

    def __init__(self, own: Any, many: Callable[[Any], Any]) -> None:
        super().__init__(own)
        self._many = many

    def __getitems__(self, indices: Any) -> Any:
        if not isinstance(indices, list):
            return _drawn(indices, lambda: self._many(indices))
        examples = []
        for index in indices:
            one = _drawn(index, lambda index=index: self._many([index]))  # type: ignore[misc]
            if not isinstance(one, list) or len(one) != 1:
                # it gives whole batches, in which an example is not by itself
                return _drawn(indices[0], lambda: self._many(indices))
            examples += one
        return examples


def _drawn(index: Any, get: Callable[[], Any]) -> Any:
    before = Generators()
    seed_all(_seed(index))
    try:
        return get()
    finally:
        before.put_back()


def _seed(index: Any) -> int:
    try:
        return whole(index) % 2**63
    except TypeError:
        return int(fingerprint(index)[:15], 16)
