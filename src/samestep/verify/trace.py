"""Trace: what was observed in a run, by rank and step, as far as steps were written down in full.

Knows which batch went into which step, and how the parts of a step on several ranks make up one global batch.
It judges nothing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from samestep.observations import Observations
from samestep.observed import (
    Batch,
    Call,
    Criterion,
    End,
    Evaluated,
    Event,
    Gradient,
    Group,
    Loader,
    Loss,
    Machine,
    Model,
    Optimizer,
    Pass,
    PassEnd,
    RandomState,
    Replica,
    Row,
    Said,
    Spawn,
    Start,
    State,
    Statistic,
    Step,
    Summary,
    Worker,
)
from samestep.verify.feeding import Feeding
from samestep.verify.translation import Dictionary, translated

Examples = Counter[tuple[int, int] | str]
"""Examples of a step with how often each is in it: loader and index, or the print of a row of inputs."""


class Taken(NamedTuple):
    """What a rank trained on of a batch."""

    loader: int
    number: int
    """That of the pass."""
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Merged:
    """Tensors that are parts of one, as its mean, root mean square and largest size."""

    num_elements: int
    mean: float
    rms: float
    max_abs: float
    dtype: str

    @classmethod
    def of(cls, parts: Iterable[Summary]) -> "Merged":
        """What the summary of all the parts together would be."""
        total, first, second, largest, dtype = 0, 0.0, 0.0, 0.0, ""
        for part in parts:
            count = math.prod(part.shape)
            if count:
                total += count
                first += count * part.mean
                second += count * part.rms**2
                largest = part.max_abs if math.isnan(part.max_abs) else max(largest, part.max_abs)
            dtype = part.dtype
        n = max(1, total)
        return cls(total, first / n, math.sqrt(second / n) if second >= 0 else math.nan, largest, dtype)


@dataclass
class RankStep:
    """A step as one rank took it."""

    row: Step | None = None
    batches: list[Batch] = field(default_factory=list)
    """Those that were trained on in this step."""
    calls: list[Call] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    criteria: list[Criterion] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    local: dict[str, Gradient] = field(default_factory=dict)
    applied: dict[str, Gradient] = field(default_factory=dict)
    states: dict[tuple[int, str], State] = field(default_factory=dict)
    """By model and name, after the step; those of step 0 are before the first."""
    replicas: dict[int, str] = field(default_factory=dict)
    evaluated: dict[int, str] = field(default_factory=dict)
    """By model, with which parameters it was evaluated before the step."""
    random: RandomState | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it had no example of the global batch: what it worked on, for company, counts nothing."""
        return bool(self.batches) and all(batch.indices == () for batch in self.batches)

    @property
    def training_calls(self) -> Iterator[Call]:
        """The calls that train, of models and of modules inside of them."""
        is_idle = self.is_idle
        return (call for call in self.calls if call.is_training and call.has_gradients and not is_idle)

    @property
    def rows(self) -> Counter[str]:
        """Prints of the rows that models were given to train on."""
        return Counter(row for call in self.training_calls if call.name == "" for row in call.rows)


def label_of(model: int, name: str) -> str:
    """How a tensor or module is called; the names of models after the first say which one it is."""
    return f"model{model}.{name}" if model else name


class RankTrace:
    """The rows of one rank."""

    def __init__(self, rank: int, rows: Iterable[Row]) -> None:
        self.rank = rank
        self.start: Start | None = None
        self.end: End | None = None
        self.group: Group | None = None
        self.machine: Machine | None = None
        self.loaders: dict[int, Loader] = {}
        self.passes: list[Pass] = []
        self.pass_ends: list[PassEnd] = []
        self.batches: list[Batch] = []
        """All that were handed out while steps were written in full, those for evaluation too."""
        self.models: dict[int, list[Model]] = defaultdict(list)
        self.optimizers: dict[int, Optimizer] = {}
        self.statistics: list[Statistic] = []
        self.workers: list[Worker] = []
        self.num_spawned = 0
        self.steps: dict[int, RankStep] = defaultdict(RankStep)
        self.trained_models: set[int] = set()
        """Models with parameters that ran forward in training."""
        self._feeding = Feeding()
        for row in rows:
            self._take(row)
        for number, batch in self._feeding.shared_out():
            self.steps[number].batches.append(batch)
        self.training_loaders = self._feeding.training
        self.evaluation_loaders = self._feeding.evaluation
        self.steps = dict(sorted(self.steps.items()))

    @property
    def num_steps(self) -> int:
        """Steps that were taken, written in full or not."""
        return max((number for number, step in self.steps.items() if step.row is not None), default=0)

    @property
    def num_full(self) -> int:
        """Steps from the first on that were written in full."""
        full = {number for number, step in self.steps.items() if step.row is not None and step.row.is_full}
        return next((n - 1 for n in range(1, len(full) + 2) if n not in full), 0)

    def events(self, number: int) -> tuple[Event, ...]:
        """What happened from the step before this one on; after the last step, until the end."""
        step = self.steps.get(number)
        if step is not None and step.row is not None:
            return step.row.events
        return self.end.events_after if self.end is not None and number > self.num_steps else ()

    def draws_in_loop(self, number: int) -> set[str]:
        """Generators that moved between a step and the next, and neither by a model nor by a loader.

        The other way round it is not certain: a model and the loop may both draw.
        """
        here, after = self.steps.get(number), self.steps.get(number + 1)
        if here is None or after is None or here.random is None or after.random is None:
            return self.draws_in_loop(number - 1) if number > 1 else set()
        if any(row.step in (number, number + 1) for row in self.passes):
            return set()
        moved = {name for step in (here, after) for call in step.calls for name in call.moved}
        moved |= {
            name for batch in self.batches if batch.step in (number, number + 1) for name in batch.moved
        }
        before, later = here.random.random, after.random.random
        return {
            n
            for n in ("torch", "numpy", "python")
            if n not in moved and getattr(before, n) != getattr(later, n)
        }

    def is_trained(self, model: int) -> bool:
        """Whether a model has parameters that need gradients; a loss function is a model without."""
        return any(text.endswith(" gradient") for row in self.models.get(model, ()) for text in row.tensors)

    def _take(self, row: Row) -> None:
        match row:
            case Start():
                self.start = row
            case End():
                self.end = row
            case Group():
                self.group = row
            case Machine():
                self.machine = row
            case Loader():
                self.loaders[row.loader] = row
            case Pass():
                self.passes.append(row)
            case PassEnd():
                self.pass_ends.append(row)
            case Batch():
                self.batches.append(row)
                self._feeding.hand_out(row)
            case Model():
                self.models[row.model].append(row)
            case Optimizer():
                self.optimizers[row.optimizer] = row
            case Statistic():
                self.statistics.append(row)
            case Worker():
                self.workers.append(row)
            case Spawn():
                self.num_spawned += row.num_processes
            case Step():
                self.steps[row.step].row = row
            case Call():
                self._take_call(row)
            case Loss():
                self.steps[row.step].losses.append(row)
                self._feeding.train(row.step)
            case Criterion():
                self.steps[row.step].criteria.append(row)
            case Said():
                self.steps[row.step].said.append(row)
            case Gradient():
                stage = self.steps[row.step].local if row.stage == "local" else self.steps[row.step].applied
                stage[row.name] = row
            case State():
                self.steps[row.step].states[row.model, row.name] = row
            case Replica():
                self.steps[row.step].replicas[row.model] = row.print
            case Evaluated():
                self.steps[row.step].evaluated[row.model] = row.print
            case RandomState():
                self.steps[row.step].random = row
            case _:
                pass

    def _take_call(self, call: Call) -> None:
        self.steps[call.step].calls.append(call)
        if call.name == "" and self.is_trained(call.model):
            if call.is_training and call.has_gradients:
                self.trained_models.add(call.model)
            else:
                self._feeding.evaluate()


class Trace:
    """The rows of all ranks of a run.

    With a `reference`, indices into a data set that has another length than the reference's are translated
    into the reference's: a program that gives each rank a part of the data set counts from 0 on every rank.
    """

    def __init__(self, observations: Observations, reference: "Trace | None" = None) -> None:
        self.ranks = {
            rank: RankTrace(rank, _rows(observations, rank, reference)) for rank in observations.ranks
        }
        self.first = self.ranks[min(self.ranks)]
        self._known = reference.dictionaries if reference is not None else {}
        self.dictionaries: dict[int, Dictionary] = defaultdict(Dictionary)
        """By loader, the examples that were seen."""
        for batch in self.first.batches:
            self.dictionaries[batch.loader].learn(batch)

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def num_full(self) -> int:
        """Steps from the first on that every rank wrote in full."""
        return min(rank.num_full for rank in self.ranks.values())

    @property
    def exchanges_weights(self) -> bool:
        """Whether ranks apply gradients of their own, and exchange something before the next forward pass."""
        counts = [0, 0]
        for number in range(2, self.num_full + 1):
            names = [event.name for event in self.first.events(number)]
            before = names[: names.index("forward")] if "forward" in names else []
            if "evaluation" not in before:
                counts[0] += 1
                counts[1] += any(
                    name.startswith(("all_reduce", "broadcast", "all_gather")) for name in before
                )
        if not counts[1] * 2 > counts[0]:
            return False
        steps = list(self.step(1).values())
        found = [
            [step.applied[name].summary for step in steps if name in step.applied]
            for name in steps[0].applied
        ]
        return any(len({summary.print for summary in many if summary is not None}) > 1 for many in found)

    def step(self, number: int) -> dict[int, RankStep]:
        """A step as each rank took it."""
        return {rank: trace.steps.get(number, RankStep()) for rank, trace in self.ranks.items()}

    def examples_by_rank(self, number: int) -> dict[int, Examples] | None:
        """What each rank trained on in a step; None where neither loaders nor models' inputs tell."""
        steps = self.step(number)
        if all(step.batches for step in steps.values()):
            found = {rank: _from_batches(step, self._known) for rank, step in steps.items()}
        elif any(trace.training_loaders for trace in self.ranks.values()) and not any(
            step.batches for step in steps.values()
        ):
            return None  # a second update on the batch of the step before
        else:  # one rank loads for all, or nobody has a loader
            found = {rank: Counter[tuple[int, int] | str](step.rows) for rank, step in steps.items()}
        if not all(part or steps[rank].is_idle for rank, part in found.items()):
            return None
        first, *others = found
        if others and all(found[r] == found[first] and not self._alike(number, first, r) for r in others):
            # all have the whole batch, and each takes its own part of it inside of the model
            return {rank: part if rank == first else Counter() for rank, part in found.items()}
        return found

    def _alike(self, number: int, one: int, other: int) -> bool:
        """Whether two ranks computed the same gradients, up to rounding; ranks with the same examples do.

        Nobody can tell with dropout, nor where examples are drawn at random.
        """
        ours, theirs = (self.step(number)[rank] for rank in (one, other))
        steps = (ours, theirs)
        if any(call.moved for step in steps for call in step.calls):
            return True
        if any(batch.moved for step in steps for batch in step.batches):
            return True
        pairs = [(g.summary, theirs.local[n].summary) for n, g in ours.local.items() if n in theirs.local]
        return all(
            a is None or b is None or abs(a.rms - b.rms) <= 0.01 * max(a.max_abs, b.max_abs) for a, b in pairs
        )

    def examples(self, number: int) -> Examples | None:
        """The global batch of a step."""
        parts = self.examples_by_rank(number)
        return None if parts is None else sum(parts.values(), Counter())

    def num_examples_by_rank(self, number: int) -> dict[int, int] | None:
        """How many examples each rank trained on in a step; 0 where a rank had none."""
        parts = self.examples_by_rank(number)
        if parts is not None:
            return {rank: part.total() for rank, part in parts.items()}
        counts = {
            rank: [batch.num_examples for batch in step.batches] for rank, step in self.step(number).items()
        }
        if not any(counts.values()) or any(n is None for many in counts.values() for n in many):
            return None
        return {rank: sum(n or 0 for n in many) for rank, many in counts.items()}

    def num_examples(self, number: int) -> int | None:
        counts = self.num_examples_by_rank(number)
        return None if counts is None else sum(counts.values())

    def taken(self, number: int) -> list[list["Taken"]] | None:
        """The batches of a step, rank by rank, without what other ranks took of them; None if not known."""
        own = self.examples_by_rank(number)
        found: list[list[Taken]] = []
        for rank, step in self.step(number).items():
            left = Counter((own or {}).get(rank, ()))
            parts = []
            for batch in step.batches:
                if batch.indices is None or own is None:
                    return None
                indices = []
                for index in batch.indices:
                    if left[batch.loader, index] > 0:
                        left[batch.loader, index] -= 1
                        indices.append(index)
                parts.append(Taken(batch.loader, batch.number, tuple(indices)))
            found.append(parts)
        return found

    def input_rows(self, number: int) -> Counter[str]:
        """Prints of the rows of what models were given in training in a step."""
        return Counter(
            row
            for rank, step in self.step(number).items()
            for call in step.training_calls
            if call.name == "" and self.ranks[rank].is_trained(call.model)
            for row in call.rows
        )

    def merged_calls(self, number: int) -> dict[tuple[int, str, int], Merged]:
        """What came out of each module in training in a step: model, name, which of its outputs; in order."""
        parts: dict[tuple[int, str, int], list[Summary]] = defaultdict(list)
        for rank, step in self.step(number).items():
            for call in step.training_calls:
                if self.ranks[rank].is_trained(call.model):
                    for i, output in enumerate(call.outputs):
                        parts[call.model, call.name, i].append(output)
        return {key: Merged.of(many) for key, many in parts.items()}


def _from_batches(step: RankStep, known: Mapping[int, Dictionary]) -> Examples:
    """The examples of a rank's batches: of those that it loaded, the ones that its models were given."""
    if step.is_idle:
        return Counter()
    if len(step.batches) == 1 and not step.batches[0].examples:
        # fewer rows than indices: a rank that keeps a part of what was drawn
        loader = step.batches[0].loader
        indices = known[loader].indices(step.rows.elements()) if loader in known else None
        if indices is not None:
            return Counter((loader, index) for index in indices)
    if any(batch.indices is None for batch in step.batches):
        return Counter(name for batch in step.batches for name in batch.examples)
    loaded = Counter(name for batch in step.batches for name in batch.examples)
    given = step.rows
    is_part = bool(given) and given.total() < loaded.total() and given <= loaded
    found: Examples = Counter()
    for batch in step.batches:
        indices = batch.indices or ()
        if not is_part or len(indices) != len(batch.examples):
            found.update((batch.loader, index) for index in indices)
            continue
        for index, name in zip(indices, batch.examples, strict=True):
            if given[name] > 0:
                given[name] -= 1
                found[batch.loader, index] += 1
    return found


def _rows(observations: Observations, rank: int, reference: Trace | None) -> Iterator[Row]:
    rows = observations.rows(rank)
    return rows if reference is None else translated(rows, reference.first.loaders, reference.dictionaries)
