"""Printed numbers: what a program says of itself after an evaluation, compared between runs.

Only lines that look alike are compared, and in them only numbers that do not vary by themselves: times, rates
and the like differ between any two runs of one rank.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from samestep.observed import Said
from samestep.verify.trace import RankTrace, Trace

_TIMES = re.compile(
    r"#:#:#|^\W*#:#\b|#[-/]#[-/]#|"
    r"#\s*(s|sec|secs|seconds?|ms|µs|us|min|h|it/s|s/it|/s)\b|(time|took|elapsed|duration)\S*\s*#"
)

_LOCAL = {"rank", "local", "shard", "worker", "mine", "my", "gpu", "pid", "running"}


class Line(NamedTuple):
    """A printed number in both runs; `tolerance` is what the digits shown and rounding explain."""

    said: Said
    position: int
    reference: float
    candidate: float
    gap: float
    tolerance: float


def compared_lines(
    reference: Trace, candidate: Trace, others: Sequence[Trace], number: int, relative: float
) -> Iterator[Line]:
    """The numbers that the first rank printed after an evaluation that followed a step, in both runs.

    Numbers of one rank that differ between the reference and `others` by more than `relative` are left out.
    """
    theirs = _lines(candidate.first, number)
    alike = [_lines(trace.first, number) for trace in others]
    for key, ours in _lines(reference.first, number).items():
        other = theirs.get(key)
        if other is None or len(other.numbers) != len(ours.numbers):
            continue
        for i, (a, b) in enumerate(zip(ours.numbers, other.numbers, strict=True)):
            draws = [lines[key].numbers[i] for lines in alike if _has(lines.get(key), i)]
            if _is_time(ours.template, i) or (a, b) == (1.0, float(candidate.world_size)):
                continue
            if _is_count_of_work(a, b, candidate.world_size) or _is_said_to_be_local(ours.template, i):
                continue
            if _is_of_training(ours.template, i) or _is_training_loss(candidate.first, number, b):
                continue
            # both were rounded to what is shown, and may have been so in opposite directions
            shown = 1.01 * 10.0 ** -max(_decimals(x) for x in (a, b, *draws))
            allowed = relative * abs(a) + (shown if any(_decimals(x) for x in (a, b)) else 0.0)
            if any(abs(a - draw) > allowed for draw in draws):
                continue
            yield Line(ours, i, a, b, abs(a - b), allowed)


def _has(said: Said | None, position: int) -> bool:
    return said is not None and position < len(said.numbers)


def _lines(rank: RankTrace, number: int) -> dict[tuple[str, int], Said]:
    """What was said after an evaluation that followed a step: how it looks, and for the how-manieth time."""
    found: dict[tuple[str, int], Said] = {}
    step = rank.steps.get(number + 1)
    counts: dict[str, int] = {}
    for said in step.said if step is not None else []:
        if said.after_evaluation:
            counts[said.template] = counts.get(said.template, 0) + 1
            found[said.template, counts[said.template]] = said
    return found


def _is_time(template: str, position: int) -> bool:
    places = [match.start() for match in re.finditer("#", template)]
    if position >= len(places):
        return False
    return any(match.start() <= places[position] < match.end() for match in _TIMES.finditer(template))


def _is_count_of_work(a: float, b: float, world_size: int) -> bool:
    """Whether both are whole numbers, one N times the other, as examples or batches a rank are."""
    return a.is_integer() and b.is_integer() and (a == b * world_size or b == a * world_size)


def _is_said_to_be_local(template: str, position: int) -> bool:
    """Whether the words before a number say that it is a rank's own."""
    words = re.findall(r"[a-z]+", "#".join(template.split("#")[: position + 1]).lower())
    return any(word in _LOCAL for word in words)


def _is_of_training(template: str, position: int) -> bool:
    """Whether the words before a number say that it is of training: people print the first rank's there."""
    return "train" in "".join(template.split("#")[position : position + 1]).lower()


def _is_training_loss(rank: RankTrace, number: int, value: float) -> bool:
    """Whether a number is the rank's own loss, or a sum or mean of those of some last steps."""
    shown = 0.51 * 10.0 ** -_decimals(value)
    total, count = 0.0, 0
    for step in range(number, 0, -1):
        losses = [loss.value for loss in rank.steps[step].losses if loss.value is not None]
        for loss in reversed(losses):
            total, count = total + loss, count + 1
            if any(abs(value - one) <= shown + 1e-6 * abs(one) for one in (loss, total, total / count)):
                return True
    return False


def _decimals(number: float) -> int:
    text = repr(number)
    if "e" in text or "." not in text:
        return 12 if "e-" in text else 0
    tail = text.partition(".")[2]
    return 0 if tail == "0" else len(tail)
