"""Loaders in the timing mode: how many examples they hand out, and nothing else of their batches."""

from collections.abc import Callable
from typing import Any

from samestep.experiment import Batches
from samestep.probe.draws import Draws, Known
from samestep.probe.fetches import Fetches
from samestep.probe.loader_rows import loader_row
from samestep.probe.loaders import Loaders
from samestep.probe.origins import Origins
from samestep.probe.summaries import tensors_in
from samestep.probe.timing_blocks import TimingWatch
from samestep.probe.timing_course import Course
from samestep.record import is_kept


class TimingLoaders(Loaders):
    """Tells the course which loaders are asked, and how many examples they hand out."""

    def __init__(self, watch: TimingWatch, origins: Origins, batches: Batches, course: Course) -> None:
        # fetches are not observed: that costs, and needs a file for each worker
        super().__init__(watch, origins, Fetches(watch), batches)
        self._course = course

    def meet(self, loader: Any) -> Known:
        known = self._known.get(loader)
        if known is None:
            known = self._known[loader] = _TimedKnown(next(self._count), self._batches)
            if is_kept(known.number):
                self._watch.write(loader_row(known.number, loader, self._origins.of(loader)), flush=True)
        return known

    def hand_out(self, known: Known, draws: Draws, data: Any) -> None:
        indices, _ = draws.hand_out()
        self._course.handed(known.number, len(indices) if indices is not None else _num_rows(data))

    def _around_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._around_iter(original)

        def iter_of(loader: Any) -> Any:
            if self._watch.is_awake:
                known = self._known.get(loader)
                self._course.asked(None if known is None else known.number)
            return inner(loader)

        return iter_of

    def _around_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._around_next(original)

        def next_of(iterator: Any) -> Any:
            if self._watch.is_awake and (going := self._passes.get(iterator)) is not None:
                self._course.asked(going[0].number)
            return inner(iterator)

        return next_of


class _TimedDraws(Draws):
    """Counts what is handed out; which examples they are is not looked at."""

    def hand_out(self) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
        self.multiset = None
        indices, moved = self.ready.popleft() if self.ready else (None, ())
        self.num_batches += 1
        if indices is None:
            self.num_examples = None
        elif self.num_examples is not None:
            self.num_examples += len(indices)
        return indices, moved


class _TimedKnown(Known):
    def begin(self) -> Draws:
        self.draws = _TimedDraws(self.given())
        return self.draws


def _num_rows(data: Any) -> int | None:
    """Examples of a batch that has no indices: the length of its first tensor that has one."""
    return next((len(tensor) for tensor in tensors_in(data) if tensor.ndim), None)
