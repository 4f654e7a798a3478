"""Fetches: which generators are moved by fetching a batch, in this process and in a loader's workers.

A worker is forked from this process, has no observers of its own, and writes to a file of its own. One that
is started in another way is not seen.
"""

import multiprocessing
from collections.abc import Callable
from threading import local
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from samestep.observations import ObservationWriter, worker_path
from samestep.observed import Worker
from samestep.probe.generators import Generators
from samestep.probe.replacing import Replacements
from samestep.probe.watch import Watch

NOT_FORKED = "a loader's workers are not forked: they are not seen, and no experiment reaches them"
MOST_PASSES = 8
"""Passes over a loader whose workers are written down."""


class Fetches:
    """Observes the objects that fetch batches from data sets; a pass of a worker has one of its own."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._replaced = Replacements()
        self._here = local()
        self._num_in_worker = 0

    def install(self) -> None:
        self._replaced.wrap(fetch._BaseDatasetFetcher, "__init__", self._around_init)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._replaced.wrap(kind, "fetch", self._around_fetch)

    def uninstall(self) -> None:
        self._replaced.undo()

    def begin(self, loader: int, number: int) -> None:
        """An iterator is made for a pass over a loader; workers that are forked now belong to it."""
        self._here.making = loader, number

    def done(self) -> None:
        """The iterator is made."""
        self._here.making = None

    def take(self) -> tuple[str, ...]:
        """The generators that the last fetch in this thread moved; they are told once."""
        moved: tuple[str, ...] = getattr(self._here, "moved", ())
        self._here.moved = ()
        return moved

    def _around_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(fetcher: Any, *args: Any, **kwargs: Any) -> None:
            original(fetcher, *args, **kwargs)
            if get_worker_info() is not None:
                self._num_in_worker += 1
                fetcher.samestep_is_new = True

        return init

    def _around_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch_of(fetcher: Any, *args: Any, **kwargs: Any) -> Any:
            if get_worker_info() is not None:
                if not vars(fetcher).pop("samestep_is_new", False):
                    return original(fetcher, *args, **kwargs)
                before = _states()
                result = original(fetcher, *args, **kwargs)
                self._write(before)
                return result
            watch = self._watch
            if not watch.is_awake or not watch.is_looked_into:
                return original(fetcher, *args, **kwargs)
            before = None
            with watch.looking("generators before a fetch"):
                before = Generators()
            result = original(fetcher, *args, **kwargs)
            with watch.looking("generators after a fetch"):
                self._here.moved = before.moved() if before is not None else ()
            return result

        return fetch_of

    def _write(self, before: Generators | None) -> None:
        """Write down this worker; there is nobody to tell of a failure."""
        making: tuple[int, int] | None = getattr(self._here, "making", None)
        info = get_worker_info()
        if making is None or info is None or before is None or not self._watch.is_full:
            return
        loader, first = making
        number = first + self._num_in_worker - 1
        if number > MOST_PASSES:
            return
        try:
            row = Worker(
                step=self._watch.step,
                loader=loader,
                number=number,
                worker=info.id,
                random=before.described(),
                moved=before.moved(),
            )
            writer = ObservationWriter(worker_path(self._watch.path, loader, number, info.id))
            writer.write(row)
            writer.close()
        except Exception:
            return


def are_workers_forked(loader: Any) -> bool:
    """Whether a loader's workers will begin with all that this process has."""
    context = loader.multiprocessing_context or multiprocessing
    # the way that has not been chosen yet must not be chosen by asking
    return (context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]) == "fork"


def _states() -> Generators | None:
    try:
        return Generators()
    except Exception:
        return None
