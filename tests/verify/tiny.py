"""A training of two parameters on any number of ranks, done in numpy; it leaves the rows that a probe would.

`Tiny` is right as it is, and each of its settings is one thing that a program may do otherwise. It is a
Runner: it obeys experiments, and is the same in every run. What no setting has is done by `edit`, on rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretending import Training
from rows import write
from sharing import contiguous, shuffled

from samestep.experiment import Experiment
from samestep.verify.comparison import compare
from samestep.verify.evidence import Evidence, Pair
from samestep.verify.replay import replayed_batches
from samestep.verify.runner import Run
from samestep.verify.trace import Trace


@dataclass(kw_only=True)
class Tiny:
    """y = weight · x + bias, squared errors, plain gradient descent; `batch_size` is that of all ranks.

    `share` splits a global batch over ranks and `turns` tells how many batches a rank takes in a step.
    `reduction`: "mean" of a rank's errors, their "sum", or "global", their sum over the targets of all ranks.
    `exchange` of gradients: "mean", "sum" or "none". `clip` is "", "after" or "before" the exchange.
    `norm` centres inputs: by "" nothing, or by the mean of the "global" or the "local" batch.
    `metric` of an evaluation after each pass: "" none, "merged", "averaged", of the "first" rank, or "kept"
    by the first rank and exchanged all the same.
    """

    out: Path
    num_examples: int = 24
    num_evaluated: int = 11
    batch_size: Callable[[int], int] = lambda size: 8
    num_passes: int = 2
    order: Callable[[int, int, int], list[int]] = shuffled
    share: Callable[[list[int], int], list[list[int]]] = contiguous
    turns: Callable[[int], int] = lambda size: 1
    reduction: str = "mean"
    exchange: str = "mean"
    targets: Callable[[int], int] = lambda index: 1
    """How many targets an example has, each of which has the same error."""
    penalty: float = 0.0
    penalised: Callable[[Any], Any] = lambda weights: weights
    """The gradient of what is penalised; as it is, half of the squares of the weights."""
    clip: str = ""
    limit: float = 1.0
    norm: str = ""
    metric: str = ""
    has_dropout: bool = False
    has_augmentation: bool = False
    is_seeded: bool = True
    knows_world: bool = True
    rate: Callable[[int], float] = lambda size: 0.05
    edit: Callable[[Any, int, int], Any] = lambda row, rank, size: row
    """A row, or several, or None, in place of each; told its rank and the number of ranks."""
    endings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How runs of some names end: fields of `Run`."""
    asked: dict[str, tuple[int, Experiment]] = field(default_factory=dict)
    whys: dict[str, str] = field(default_factory=dict)

    def __call__(self, name, world_size, experiment=None, *, why=""):
        experiment = experiment or Experiment()
        self.asked[name], self.whys[name] = (world_size, experiment), why
        write(self.out / name, self._rows(world_size, experiment))
        return self._run(name, world_size, experiment)

    def trace(self, world_size, experiment=None, reference=None):
        """What would be read of a run, without the way over files, which takes most of the time."""
        return Trace(Kept(self._rows(world_size, experiment or Experiment())), reference)

    def evidence(self, size=2):
        """The program as it is, on one rank and on `size`."""
        reference = self.trace(1)
        candidate = self.trace(size, reference=reference)
        run = self._run("candidate", size, Experiment())
        return Evidence(candidate_run=run, candidate=candidate, reference=reference, repeat=reference)

    def paired(self, size=2):
        """The same, and one rank that is given the batches of several."""
        found = self.evidence(size)
        replay = self.trace(1, Experiment(batches=replayed_batches(found.candidate, found.reference)))
        found.pair = Pair(
            replay=replay,
            counterpart=found.candidate,
            run=found.candidate_run,
            comparison=compare(replay, found.candidate),
        )
        return found

    def _run(self, name, size, experiment):
        told = {"status": "finished", "seconds": 1.0} | self.endings.get(name, {})
        return Run(name=name, world_size=size, folder=self.out / name, experiment=experiment, **told)

    def _rows(self, size, experiment):
        made = Training(self, size, experiment).rows()
        return [[*self._edited(rows, rank, size)] for rank, rows in enumerate(made)]

    def _edited(self, rows, rank, size):
        for each in rows:
            made = self.edit(each, rank, size)
            if made is not None:
                yield from made if isinstance(made, list | tuple) else [made]


class Kept:
    """Observations that were never written down."""

    def __init__(self, rows_of_ranks):
        self._rows = rows_of_ranks
        self.ranks = list(range(len(rows_of_ranks)))

    def rows(self, rank):
        return iter(self._rows[rank])


@dataclass(kw_only=True)
class Named(Tiny):
    """One whose runs of a name, or part of a name, have rows that are edited otherwise."""

    part: str = ""
    edit_there: object = None

    def __call__(self, name, world_size, experiment=None, *, why=""):
        if self.part not in name:
            return super().__call__(name, world_size, experiment, why=why)
        kept, self.edit = self.edit, self.edit_there
        try:
            return super().__call__(name, world_size, experiment, why=why)
        finally:
            self.edit = kept
