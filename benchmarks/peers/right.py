"""Is the result that of one rank? Each library is run, and what it did is counted or compared.

The judgements are pure: they look at facts. A library that refuses a job, hangs or fails gets its own words
as the answer.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers import facts
from benchmarks.peers.crew import Crew, CrewError

SIZE = 2
RESUMED_SIZE = 3
LIMIT = 1e-3
"""Relative errors below are rounding. In float32 a sum of n numbers errs by at most n·2⁻²⁴ of the sum of
their sizes (Higham, 2002, section 4.2): for the 8 examples, 8 features and 8 layers of sums here that is
3e-5, and the sizes are below 30 times the largest gradient. An example that counts twice makes a
tenth or more."""

_EPOCH = 97
_EVEN = 96
_UNEVEN = 5
_EVALUATED = 13


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether a library is right about one thing, and the figures in a few words."""

    is_right: bool
    told: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row: what is asked, and how a library is asked."""

    what: str
    run: Callable[["Crews"], Answer]


class Crews:
    """The ranks of one library, started when needed, and anew after a failure."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings = ""
        self._crew: Crew | None = None

    def ask(self, function: Callable[..., Any], *, size: int = SIZE, **arguments: Any) -> list[Any]:
        """The answers of all ranks; raises CrewError, after which the ranks are new ones."""
        if self._crew is not None and self._crew.size != size:
            self.close()
        if self._crew is None:
            self._crew = Crew(self.name, size)
            self.settings = self._crew.settings
        try:
            return self._crew.ask(function, **arguments)
        except CrewError:
            self._crew.kill()
            self._crew = None
            raise

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None


def ask_all(name: str, checks: list[Check]) -> tuple[str, dict[str, Answer]]:
    """The settings of a library, and its answers by what was asked."""
    crews, answers = Crews(name), {}
    try:
        for check in checks:
            try:
                answers[check.what] = check.run(crews)
            except CrewError as error:
                answers[check.what] = Answer(is_right=False, told=f"fails: {str(error)[:90]}")
    finally:
        crews.close()
    return crews.settings, answers


def counted(seen: list[int], expected: list[int], *, per: str = "") -> Answer:
    """Whether each expected example was seen exactly once, and no other."""
    times = Counter(seen)
    wanted = set(expected)
    repeated = sum(number - 1 for index, number in times.items() if index in wanted)
    missed = len(wanted - set(times))
    strange = sum(number for index, number in times.items() if index not in wanted)
    parts = [
        f"{number} {word}"
        for number, word in ((repeated, "repeated"), (missed, "missed"), (strange, "never drawn"))
        if number
    ]
    told = ", ".join(parts) or f"all {len(wanted)} once"
    return Answer(is_right=not parts, told=f"{told}{per}")


def in_order(rows: list[float], num_examples: int) -> Answer:
    """Whether row i is that of example i, for all of them and no more."""
    expected = [float(i) for i in range(num_examples)]
    if rows == expected:
        return Answer(is_right=True, told=f"{len(rows)} rows in order")
    misplaced = sum(1 for i, row in enumerate(rows[:num_examples]) if row != i)
    return Answer(is_right=False, told=f"{len(rows)} rows for {num_examples}, {misplaced} out of place")


def compared(error: float, *, note: str = "") -> Answer:
    """Whether an error, relative to what it should be, is rounding."""
    return Answer(
        is_right=error < LIMIT, told=f"{error:.0e}" if error < LIMIT else f"{error:.0%} off", note=note
    )


def _epoch(crews: Crews) -> Answer:
    return _examples(crews, _EPOCH, None, list(range(_EPOCH)))


def _weighted(crews: Crews) -> Answer:
    return _examples(crews, _EVEN, "weighted", list(range(0, _EVEN, 2)))


def _unseeded(crews: Crews) -> Answer:
    return _examples(crews, _EVEN, "unseeded", list(range(0, _EVEN, 2)))


def _examples(crews: Crews, num_examples: int, sampler: str | None, expected: list[int]) -> Answer:
    ranks = crews.ask(facts.examples, num_examples=num_examples, batch_size=8, sampler=sampler)
    return counted([index for rank in ranks for index in rank["seen"]], expected)


def _uneven(crews: Crews) -> Answer:
    return compared(_error(crews, "uneven", _UNEVEN))


def _weights(crews: Crews) -> Answer:
    return compared(_error(crews, "weights", 8))


def _batch_norm(crews: Crews) -> Answer:
    try:
        return compared(_error(crews, "batch norm", 8, sync=True))
    except CrewError as error:
        refused = str(error)
    note = (
        f"synchronised norms are refused on CPU ({refused}), so each rank has its own; on GPUs torch has them"
    )
    return compared(_error(crews, "batch norm", 8), note=note)


def _error(crews: Crews, kind: str, num_examples: int, *, sync: bool = False) -> float:
    ranks = crews.ask(facts.gradient, kind=kind, num_examples=num_examples, sync=sync)
    return max(float(rank["error"]) for rank in ranks)


def _resumed(crews: Crews) -> Answer:
    num_examples, batch_size, saved = 100, 12, 4
    with TemporaryDirectory(prefix="peers-") as folder:
        Path(folder).chmod(0o755)
        arguments: dict[str, Any] = {"num_examples": num_examples, "batch_size": batch_size, "folder": folder}
        before = crews.ask(facts.examples, save_after=saved, **arguments)
        after = crews.ask(facts.examples, resume_at=saved, size=RESUMED_SIZE, **arguments)
    seen = [index for rank in (*before, *after) for index in rank["seen"]]
    return counted(seen, list(range(num_examples)))


def _predictions(crews: Crews) -> Answer:
    return in_order(crews.ask(facts.prediction, num_examples=_EVALUATED)[0], _EVALUATED)


def _metric(crews: Crews) -> Answer:
    expected = sum(i * i for i in range(_EVALUATED)) / _EVALUATED
    value = crews.ask(facts.metric, num_examples=_EVALUATED)[0]
    return compared(abs(value - expected) / expected)


CHECKS = [
    Check(what=f"an epoch of {_EPOCH} examples, batch 8", run=_epoch),
    Check(what="a weighted sampler, ranks seeded alike", run=_weighted),
    Check(what="a sampler that nobody seeds", run=_unseeded),
    Check(what=f"gradient of a last batch of {_UNEVEN}", run=_uneven),
    Check(what="gradient of a loss weighted by tokens", run=_weights),
    Check(what="gradient through batch norm", run=_batch_norm),
    Check(what=f"{_EVALUATED} predictions, in order", run=_predictions),
    Check(what=f"a metric over {_EVALUATED} examples", run=_metric),
    Check(what=f"resumed amid an epoch, {SIZE} to {RESUMED_SIZE} ranks", run=_resumed),
]
