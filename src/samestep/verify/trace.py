"""Trace: what was observed in a run, by rank and step, as far as steps were written down in full.

Knows which batch went into which step, and how the parts of a step on several ranks make up one global batch.
It judges nothing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from samestep.experiment import Batches, pass_key
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

Examples = Counter[tuple[int, int] | str]
"""Examples of a step with how often each is in it: loader and index, or the print of a row of inputs."""


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
    def training_calls(self) -> Iterator[Call]:
        """The calls that train, of models and of modules inside of them."""
        return (call for call in self.calls if call.is_training and call.has_gradients)

    @property
    def num_examples(self) -> int | None:
        """How many examples the rank trained on; None where nobody can tell."""
        if self.batches:
            counts = [batch.num_examples for batch in self.batches]
            return None if None in counts else sum(count for count in counts if count is not None)
        rows = [len(call.rows) for call in self.training_calls if call.name == ""]
        return sum(rows) if rows and all(rows) else None


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
        self.training_loaders: set[int] = set()
        self.evaluation_loaders: set[int] = set()
        self._last_loader: int | None = None
        for row in rows:
            self._take(row)
        self._share_out_batches()
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
                self._last_loader = row.loader
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
        if call.name == "" and call.is_training and call.has_gradients and self.is_trained(call.model):
            self.trained_models.add(call.model)
        if call.name == "" and self._last_loader is not None and self.is_trained(call.model):
            if call.is_training and call.has_gradients:
                self.training_loaders.add(self._last_loader)
            else:
                self.evaluation_loaders.add(self._last_loader)

    def _share_out_batches(self) -> None:
        """Give each batch to the step that trained on it; a loader may have handed it out a step before."""
        self.evaluation_loaders -= self.training_loaders
        batches = [batch for batch in self.batches if batch.loader in self.training_loaders]
        calls = [
            call
            for number in sorted(self.steps)
            for call in self.steps[number].training_calls
            if call.name == "" and self.is_trained(call.model)
        ]
        calls_a_batch = max(1, round(len(calls) / len(batches))) if batches else 1
        for i, batch in enumerate(batches):
            place = i * calls_a_batch
            if not calls:
                self.steps[batch.step].batches.append(batch)
            elif place < len(calls):
                self.steps[calls[place].step].batches.append(batch)


class Trace:
    """The rows of all ranks of a run.

    With a `reference`, indices into a data set that has another length than the reference's are translated
    into the reference's: a program that gives each rank a part of the data set counts from 0 on every rank.
    """

    def __init__(self, observations: Observations, reference: "Trace | None" = None) -> None:
        self.ranks = {
            rank: RankTrace(rank, _translated(observations.rows(rank), reference))
            for rank in observations.ranks
        }
        self.first = self.ranks[min(self.ranks)]
        self.dictionaries: dict[int, dict[str, int]] = {}
        """By loader, the index of each example that was seen, by its print."""
        for batch in self.first.batches:
            known = self.dictionaries.setdefault(batch.loader, {})
            if batch.indices is not None and len(batch.indices) == len(batch.examples):
                known.update(zip(batch.examples, batch.indices, strict=True))

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def num_full(self) -> int:
        """Steps from the first on that every rank wrote in full."""
        return min(rank.num_full for rank in self.ranks.values())

    def step(self, number: int) -> dict[int, RankStep]:
        """A step as each rank took it."""
        return {rank: trace.steps.get(number, RankStep()) for rank, trace in self.ranks.items()}

    def examples(self, number: int) -> Examples | None:
        """The global batch of a step; None where neither a loader nor a model's input tells."""
        found: Examples = Counter()
        for step in self.step(number).values():
            part = examples_of(step)
            if part is None:
                return None
            found += part
        return found or None

    def num_examples(self, number: int) -> int | None:
        counts = [step.num_examples for step in self.step(number).values()]
        return None if None in counts else sum(count for count in counts if count is not None)

    def order(self, number: int) -> list[tuple[int, int, int]]:
        """The global batch of a step as (loader, pass, index), rank after rank; empty if not known."""
        found: list[tuple[int, int, int]] = []
        for step in self.step(number).values():
            for batch in step.batches:
                if batch.indices is None:
                    return []
                found += [(batch.loader, batch.number, index) for index in batch.indices]
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


def _translated(rows: Iterable[Row], reference: Trace | None) -> Iterator[Row]:
    """Rows whose batches have the reference's indices; those that it has not seen have none."""
    other_lengths: set[int] = set()
    for row in rows:
        if reference is not None:
            theirs = reference.first.loaders
            if isinstance(row, Loader) and row.loader in theirs:
                if theirs[row.loader].num_examples != row.num_examples:
                    other_lengths.add(row.loader)
            elif isinstance(row, Batch) and row.loader in other_lengths:
                known = reference.dictionaries.get(row.loader, {})
                indices = tuple(known[name] for name in row.examples if name in known)
                is_known = row.examples and len(indices) == len(row.examples)
                row = replace(row, indices=indices if is_known else None)
            elif isinstance(row, PassEnd) and row.loader in other_lengths:
                row = replace(row, multiset=None)
        yield row


def examples_of(step: RankStep) -> Examples | None:
    """The examples that a rank trained on in a step."""
    found: Examples = Counter()
    if step.batches:
        for batch in step.batches:
            if batch.indices is None:
                return Counter(name for each in step.batches for name in each.examples) or None
            found.update((batch.loader, index) for index in batch.indices)
        return found
    rows = [name for call in step.training_calls if call.name == "" for name in call.rows]
    return Counter(rows) or None


def replayed_batches(candidate: Trace, reference: Trace, *, is_reversed: bool = False) -> Batches:
    """The candidate's global batches, as the batches that one rank is to be given in their place.

    A step keeps its examples. It is cut into as many batches as the reference takes in that step, so that
    a program that accumulates less on more ranks is given what it expects on one.
    """
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for number in range(1, candidate.num_full + 1):
        order = candidate.order(number)
        if not order:
            return {}
        ours = [step.batches for step in candidate.step(number).values()]
        theirs = reference.first.steps.get(number)
        num_batches = max(1, len(theirs.batches)) if theirs is not None and theirs.batches else len(ours[0])
        if all(len(batches) == num_batches for batches in ours):
            groups = [
                [(b.loader, b.number, i) for batches in ours for b in (batches[j],) for i in b.indices or ()]
                for j in range(num_batches)
            ]
        else:
            bounds = [len(order) * j // num_batches for j in range(num_batches + 1)]
            groups = [order[start:stop] for start, stop in pairwise(bounds)]
        for group in groups:
            indices = tuple(index for _, _, index in group)
            if group:
                key = pass_key(group[0][0], group[0][1])
                found[key].append(indices[::-1] if is_reversed else indices)
    return {key: tuple(batches) for key, batches in found.items()}
