"""Several libraries take turns: in every round each has one block of steps, in random order.

A machine that gets slower or faster does so for all of a round, so only ratios and differences within a round
are looked at.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.measure import Estimate, Length, median
from benchmarks.peers import timed
from benchmarks.peers.crew import Crew, CrewError

_WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Seconds a step of each library, round by round, by the clock and by the processors of all ranks.

    `failed` says why others have none.
    """

    wall_s: dict[str, list[float]] = field(default_factory=dict)
    processor_s: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def throughput(self, name: str, base: str) -> Estimate:
        """That of `name` as a part of that of `base`: above 1 is faster."""
        pairs = zip(self.wall_s[name], self.wall_s[base], strict=True)
        return median([theirs / own for own, theirs in pairs])

    def added_s(self, name: str, base: str) -> Estimate:
        """Seconds a step that `name` takes more than `base`."""
        return median(
            [own - theirs for own, theirs in zip(self.wall_s[name], self.wall_s[base], strict=True)]
        )


class Ensemble:
    """The crews of several libraries, all there at once, of which one works at a time.

    `labels` gives each crew a name and says of which library and size it is. One that fails is started anew
    for the next workload; one that could not be started is not tried again.
    """

    def __init__(self, labels: dict[str, tuple[str, int]]) -> None:
        self._labels = labels
        self._crews: dict[str, Crew] = {}
        self._absent: dict[str, CrewError] = {}

    def take_turns(
        self, workload: str | Callable[[str], str], length: Length, *, quick: bool, before: int = 0
    ) -> Taken:
        """All train the workload in turns; `before` steps of each turn do not count.

        `workload` may also be a function of the label.
        """
        taken = Taken()
        name_of = workload if callable(workload) else (lambda label: workload)
        steps_s = {}
        for label in self._labels:
            try:
                crew = self._crew(label)
                crew.begin(timed.in_turns, name=name_of(label), quick=quick)
                crew.hear()
                steps_s[label] = min(crew.take(_WARM_UP, before)[0] for _ in range(2))
            except CrewError as error:
                self._lose(label, error, taken)
        num_steps = max(1, round(length.block_s / min(steps_s.values()))) if steps_s else 1
        order = random.Random(0)
        # the first round is warm-up as well: allocators and caches have just met all of them together
        for number in range(length.rounds + 1):
            playing = [label for label in steps_s if label not in taken.failed]
            for label in order.sample(playing, len(playing)):
                try:
                    wall, processor = self._crews[label].take(num_steps, before)
                except CrewError as error:
                    self._lose(label, error, taken)
                    continue
                if number:
                    taken.wall_s.setdefault(label, []).append(wall)
                    taken.processor_s.setdefault(label, []).append(processor)
        for label in [label for label in steps_s if label not in taken.failed]:
            try:
                self._crews[label].end_training()
            except CrewError:
                self._crews.pop(label).kill()
        return taken

    def close(self) -> None:
        while self._crews:
            self._crews.popitem()[1].close()

    def _crew(self, label: str) -> Crew:
        if label in self._absent:
            raise self._absent[label]
        if label not in self._crews:
            try:
                self._crews[label] = Crew(*self._labels[label])
            except CrewError as error:
                self._absent[label] = error
                raise
        return self._crews[label]

    def _lose(self, label: str, error: CrewError, taken: Taken) -> None:
        taken.failed[label] = str(error)
        taken.wall_s.pop(label, None)
        taken.processor_s.pop(label, None)
        if label in self._crews:
            self._crews.pop(label).kill()
