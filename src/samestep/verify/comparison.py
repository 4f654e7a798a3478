"""Comparison: where a run on N ranks first differs from one on one rank that was given the same examples.

A pure function of traces. It finds places and sizes of differences; what caused them is not asked here.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

from samestep.observed import State, Summary
from samestep.verify.printed import compared_lines
from samestep.verify.rounding import AMPLIFIED, BLIND, DRAWS, relative_error, unit_roundoff
from samestep.verify.trace import Trace, label_of

Quantity = Literal[
    "steps", "examples", "inputs", "forward", "gradient", "learning rate", "buffer", "weight", "metric"
]
QUANTITIES: tuple[Quantity, ...] = (
    "steps", "examples", "inputs", "forward", "gradient", "learning rate", "buffer", "weight", "metric",
)  # fmt: skip
Mark = Literal["same", "equal", "different"]
_PASSED_ON = 4.0
"""How many times more of a silent bias comes to the normalisation that takes it away: mostly nothing lies
between, else a dropout, a pooling, a small kernel."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One quantity of one step that is further off than rounding explains, and on which ranks.

    `size` and `tolerance` are in the quantity's own unit; `reference` and `candidate` are what was compared.
    """

    step: int
    quantity: Quantity
    name: str
    ranks: tuple[int, ...]
    size: float
    tolerance: float
    reference: float | str = ""
    candidate: float | str = ""


class Value(NamedTuple):
    """A quantity as a few numbers, all of them as precise as `scale` times the rounding of a step allows."""

    quantity: Quantity
    name: str
    numbers: tuple[float, ...]
    scale: float
    dtype: str
    print: str | None = None
    num_elements: int | None = None
    """Of parts that were merged; parts that were padded to other lengths have other numbers in all."""


class _Pair(NamedTuple):
    """A quantity in two runs, how far apart it may be, and the size that this is measured on."""

    a: Value
    b: Value
    allowed: float
    scale: float


@dataclass(kw_only=True)
class Comparison:
    """All that was compared: a mark for each quantity and step, and the differences in order."""

    num_steps: int
    marks: dict[tuple[Quantity, int], Mark] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    growth: float = 1.0
    """By how much more than its bound rounding was seen to differ, in the middle of gradients and weights."""
    blind_from: int | None = None
    """The first step in which rounding, or the order of examples, leads so far that nothing can be told."""

    @property
    def first(self) -> Difference | None:
        """The earliest difference, in the order in which a step computes things."""
        return min(self.differences, key=lambda d: (d.step, QUANTITIES.index(d.quantity)), default=None)

    @property
    def is_different(self) -> bool:
        return bool(self.differences)

    @property
    def is_equal(self) -> bool:
        """Whether steps were compared, up to the last, and nothing is different."""
        return self.num_steps > 0 and self.blind_from is None and not self.differences

    @property
    def is_same(self) -> bool:
        """Whether all weights and buffers have the same bits after every step."""
        kept = [mark for (quantity, _), mark in self.marks.items() if quantity in ("weight", "buffer")]
        return bool(kept) and not self.differences and all(mark == "same" for mark in kept)

    def forget(self, is_nothing: Callable[[Difference], bool]) -> None:
        """Take differences away that turned out to be none."""
        self.differences = [d for d in self.differences if not is_nothing(d)]
        for quantity, number in [key for key, mark in self.marks.items() if mark == "different"]:
            if not any((d.quantity, d.step) == (quantity, number) for d in self.differences):
                self.marks[quantity, number] = "equal"

    def first_of(self, quantity: Quantity) -> Difference | None:
        """The earliest difference in one quantity."""
        return next((d for d in self.differences if d.quantity == quantity), None)


def compare(
    reference: Trace,
    candidate: Trace,
    noise: Sequence[tuple[Trace, Trace]] = (),
    *,
    is_measured: bool = False,
    is_given: bool = False,
) -> Comparison:
    """Compare a run on one rank with one on several that had the same global batches.

    `noise` are pairs of runs that differ by rounding only; `is_measured` if that is by another order.
    A reference that `is_given` its batches may end earlier than by itself.
    """
    num_steps = min(reference.num_full, candidate.num_full)
    alike = [other for one, other in noise if one is reference]
    found = Comparison(num_steps=num_steps)
    adrift = 0.0
    for number in range(1, num_steps + 1):
        _compare_inputs(found, reference, candidate, number)
        limits = _limits(reference, number, is_measured=is_measured)
        silent = _silent(reference, number)
        spread = _spread(noise, number)
        sizes = _Sizes.of(reference, number)
        ratios = [
            gap / limits[value.dtype] / _scale(value, value, sizes)
            for value in values(reference, number)
            if value.quantity in ("gradient", "weight") and value.name not in silent
            for gap in (spread.get((value.quantity, value.name), 0.0),)
        ]
        found.growth = max(found.growth, median(ratios) if ratios else 0.0)
        pairs = [
            _Pair(a, b, DRAWS * max(found.growth * limits[a.dtype] * scale, own) + shifted, scale)
            for a, b in _paired(reference, candidate, number)
            for shifted in (_PASSED_ON * adrift if a.quantity == "buffer" else 0.0,)
            for scale, own in ((_scale(a, b, sizes), spread.get((a.quantity, a.name), 0.0)),)
        ]
        power = [p.allowed / p.scale for p in pairs if p.a.quantity == "gradient" and p.a.name not in silent]
        if (power and median(power) > BLIND) or (number == 1 and found.growth > AMPLIFIED):
            found.blind_from, found.num_steps = number, number - 1
            break
        # of the weights after this step, which the next one computes with
        adrift = max([adrift, *(_gap(p.a, p.b) for p in pairs if _is_adrift(p.a, silent))])
        is_ragged = _is_ragged(reference, candidate, number)
        for a, b, allowed, _ in pairs:
            if is_ragged and a.quantity == "forward":
                continue
            gap = _gap(a, b)
            mark: Mark = "same" if a.print is not None and a.print == b.print else "equal"
            if not gap <= allowed and a.name not in silent:
                mark = "different"
                found.differences.append(_difference(number, a, b, candidate, gap, allowed))
            _note(found, a.quantity, number, mark)
        _compare_settings(found, reference, candidate, number)
        relative = DRAWS * found.growth * limits["float32"]
        for line in compared_lines(reference, candidate, alike, number, relative):
            is_off = not line.gap <= line.tolerance
            _note(found, "metric", number, "different" if is_off else "equal")
            if is_off:
                found.differences.append(
                    Difference(
                        step=number, quantity="metric", name=line.said.template, ranks=(0,), size=line.gap,
                        tolerance=line.tolerance, reference=line.reference, candidate=line.candidate,
                    )
                )  # fmt: skip
    _forgive_where_gradients_agree(found)
    if not is_given:
        _compare_lengths(found, reference, candidate)
    found.differences.sort(key=lambda d: (d.step, QUANTITIES.index(d.quantity)))
    return found


def _difference(number: int, a: Value, b: Value, candidate: Trace, gap: float, allowed: float) -> Difference:
    i = max(range(len(a.numbers)), key=lambda i: _apart(a.numbers[i], b.numbers[i]))
    return Difference(
        step=number, quantity=a.quantity, name=a.name, ranks=tuple(candidate.ranks), size=gap,
        tolerance=allowed, reference=a.numbers[i], candidate=b.numbers[i],
    )  # fmt: skip


def values(trace: Trace, number: int) -> Iterator[Value]:
    """The quantities of a step that are numbers, those of all ranks merged; states as the first rank has."""
    for (model, name, i), merged in trace.merged_calls(number).items():
        label = label_of(model, name or "output") + (f":{i}" if i else "")
        numbers = (merged.mean, merged.rms, merged.max_abs)
        yield Value("forward", label, numbers, merged.max_abs, merged.dtype, None, merged.num_elements)
    first = trace.first.steps.get(number)
    if first is None:
        return
    for name, gradient in first.applied.items():
        if gradient.summary is not None:
            yield _value("gradient", name, gradient.summary)
    for (model, name), state in first.states.items():
        label = label_of(model, name)
        yield _value("weight" if state.role == "parameter" else "buffer", label, state.summary)


def _value(quantity: Quantity, name: str, summary: Summary) -> Value:
    numbers = (summary.mean, summary.rms, summary.max_abs, *summary.sample)
    return Value(quantity, name, numbers, summary.max_abs, summary.dtype, summary.print)


def _paired(a: Trace, b: Trace, number: int) -> Iterator[tuple[Value, Value]]:
    others = {(value.quantity, value.name): value for value in values(b, number)}
    for value in values(a, number):
        other = others.get((value.quantity, value.name))
        if other is None or other.num_elements != value.num_elements:
            continue
        if len(other.numbers) == len(value.numbers):
            yield value, other


def _apart(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf


def _gap(a: Value, b: Value) -> float:
    return max((_apart(x, y) for x, y in zip(a.numbers, b.numbers, strict=True)), default=0.0)


class _Sizes(NamedTuple):
    """What errors are measured on at least, in a step."""

    gradient: float
    """The largest in the model: what comes back through it has errors of its size, wherever it cancels."""
    weight: float
    """How far the step may move a weight: by the rate times the gradient, or times 1 if it is normalised."""

    @classmethod
    def of(cls, reference: Trace, number: int) -> "_Sizes":
        step = reference.first.steps[number]
        sizes = [g.summary.max_abs for g in step.applied.values() if g.summary is not None]
        largest = max((size for size in sizes if math.isfinite(size)), default=0.0)
        rate = max(step.row.lr, default=0.0) if step.row is not None else 0.0
        return cls(largest, rate * max(1.0, largest))


def _scale(a: Value, b: Value, sizes: _Sizes) -> float:
    """The size that errors are measured on."""
    own = [value.scale for value in (a, b) if math.isfinite(value.scale)]
    least = {"gradient": sizes.gradient, "weight": sizes.weight}.get(a.quantity, 0.0)
    return max([*own, least, 1e-30])


def _spread(noise: Sequence[tuple[Trace, Trace]], number: int) -> dict[tuple[Quantity, str], float]:
    """The largest difference of each quantity between runs that differ by rounding only."""
    found: dict[tuple[Quantity, str], float] = {}
    for pair in noise:
        for a, b in _paired(*pair, number):
            key = a.quantity, a.name
            if math.isfinite(gap := _gap(a, b)):
                found[key] = max(found.get(key, 0.0), gap)
    return found


class _Limits(dict[str, float]):
    """The relative error that a step may have, by the kind of numbers; coarser ones on the way count."""

    def __init__(self, number: int, terms: int, coarsest: float) -> None:
        self._number, self._terms, self._coarsest = number, terms, coarsest

    def __missing__(self, dtype: str) -> float:
        unit = max(unit_roundoff(dtype), self._coarsest)
        self[dtype] = self._number * relative_error(self._terms, unit)
        return self[dtype]


def _limits(reference: Trace, number: int, *, is_measured: bool = True) -> _Limits:
    merged = reference.merged_calls(number)
    step = reference.first.steps[number]
    rows = [
        math.prod(o.shape[:-1]) for c in step.training_calls if c.name == "" for o in c.outputs if o.shape
    ]
    units = [unit_roundoff(part.dtype) for part in merged.values() if "float" in part.dtype]
    # what was measured has the true size of errors in it; else they may be as large as they ever get
    terms = max([*rows, 2]) if is_measured else max([*rows, 2]) ** 2
    return _Limits(number, terms, max(units, default=0.0))


def _silent(reference: Trace, number: int) -> set[str]:
    """Parameters whose gradients are nothing but rounding, as of a bias before a normalisation.

    Optimizers that divide by the gradient's size make steps of full length in random directions of them. The
    normalisation takes such a shift away again, but its running mean has it.
    """
    first = reference.first.steps[number].applied
    sizes = {name: g.summary.max_abs for name, g in first.items() if g.summary is not None}
    largest = max((size for size in sizes.values() if math.isfinite(size)), default=0.0)
    limits = _limits(reference, 1)
    return {
        name
        for name, size in sizes.items()
        if size <= DRAWS * largest * limits[first[name].summary.dtype]  # type: ignore[union-attr]
    }


def _is_adrift(value: Value, silent: set[str]) -> bool:
    return value.quantity == "weight" and value.name in silent and math.isfinite(value.scale)


def _compare_inputs(found: Comparison, reference: Trace, candidate: Trace, number: int) -> None:
    ours, theirs = reference.examples(number), candidate.examples(number)
    if ours is not None and theirs is not None:
        if ours == theirs:
            _note(found, "examples", number, "same")
        else:
            extra, missing = theirs - ours, ours - theirs
            others = f"{extra.total()} others among " if ours.total() == theirs.total() else ""
            found.differences.append(
                Difference(
                    step=number, quantity="examples", name="the global batch", ranks=tuple(candidate.ranks),
                    size=float(max(extra.total(), missing.total())), tolerance=0.0,
                    reference=f"{ours.total()} examples",
                    candidate=f"{others}{theirs.total()} examples",
                )
            )  # fmt: skip
            _note(found, "examples", number, "different")
            return
        if not any(rank.draws_in_loop(number) for t in (reference, candidate) for rank in t.ranks.values()):
            return
    rows = [trace.input_rows(number) for trace in (reference, candidate)]
    if rows[0] and rows[1] and not _is_ragged(reference, candidate, number):
        lost = rows[0] - rows[1]
        if lost:
            found.differences.append(
                Difference(
                    step=number, quantity="inputs", name="the model's inputs", ranks=tuple(candidate.ranks),
                    size=float(lost.total()), tolerance=0.0, reference=f"{rows[0].total()} rows",
                    candidate=f"{lost.total()} of them are not there",
                )
            )  # fmt: skip
        _note(found, "inputs", number, "different" if lost else "same")


def _is_ragged(reference: Trace, candidate: Trace, number: int) -> bool:
    """Whether ranks padded their examples to other lengths: then what models see and make is not the same."""
    ours, theirs = ([m.num_elements for m in t.merged_calls(number).values()] for t in (reference, candidate))
    return ours != theirs


def _forgive_where_gradients_agree(found: Comparison) -> None:
    """Inputs and outputs tell where gradients come apart; where those agree, nothing did.

    A model may be given its examples in another shape or return numbers about a whole batch.
    """
    for number in range(1, found.num_steps + 1):
        if found.marks.get(("gradient", number), "different") != "different":
            for quantity in ("inputs", "forward"):
                if found.marks.get((quantity, number)) == "different":
                    found.marks[quantity, number] = "equal"
                    found.differences = [
                        d for d in found.differences if (d.quantity, d.step) != (quantity, number)
                    ]


def _compare_settings(found: Comparison, reference: Trace, candidate: Trace, number: int) -> None:
    ours = reference.first.steps[number].row
    for rank, step in candidate.step(number).items():
        theirs = step.row
        if ours is None or theirs is None:
            continue
        for name, a, b in (
            ("lr", ours.lr, theirs.lr),
            ("weight_decay", ours.weight_decay, theirs.weight_decay),
        ):
            if a == b:
                _note(found, "learning rate", number, "same")
                continue
            _note(found, "learning rate", number, "different")
            x, y = next(((x, y) for x, y in zip(a, b, strict=False) if x != y), (math.nan, math.nan))
            found.differences.append(
                Difference(
                    step=number, quantity="learning rate", name=name, ranks=(rank,), size=_apart(x, y),
                    tolerance=0.0, reference=x, candidate=y,
                )
            )  # fmt: skip


def _compare_lengths(found: Comparison, reference: Trace, candidate: Trace) -> None:
    """Runs that both came to their own end took the same number of steps."""
    ends = [reference.first.end, *(rank.end for rank in candidate.ranks.values())]
    if any(end is None or end.status != "finished" for end in ends):
        return
    ours = reference.first.num_steps
    for rank, trace in candidate.ranks.items():
        if trace.num_steps != ours:
            step = min(ours, trace.num_steps) + 1
            found.differences.append(
                Difference(
                    step=step, quantity="steps", name="steps taken", ranks=(rank,),
                    size=float(abs(ours - trace.num_steps)), tolerance=0.0, reference=float(ours),
                    candidate=float(trace.num_steps),
                )
            )  # fmt: skip


def _note(found: Comparison, quantity: Quantity, number: int, mark: Mark) -> None:
    order: tuple[Mark, ...] = ("same", "equal", "different")
    before = found.marks.get((quantity, number), "same")
    found.marks[quantity, number] = max(before, mark, key=order.index)


def differing_states(trace: Trace, number: int) -> dict[tuple[int, str], list[State]]:
    """Parameters and buffers whose bits are not the same on all ranks after a step."""
    steps = trace.step(number).values()
    found = {}
    for key in next(iter(steps)).states:
        states = [step.states[key] for step in steps if key in step.states]
        if len({state.summary.print for state in states}) > 1:
            found[key] = states
    return found
