"""Faster: the answer of a sweep in words: whether more GPUs pay, and what takes the speed that is missing.

Says what was measured and no more: the judgement is that of the intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.report.figures import gpus, seconds, times
from samestep.report.sweep import CellRow, GapRow, Sweep
from samestep.report.wording import number
from samestep.scale.gap import EXCHANGE, INPUT, NORMS, SHARING, SMALLER_BATCH, UNDIVIDED, WAITING

_GOES_TO = {
    SMALLER_BATCH: "the smaller batch on each GPU",
    SHARING: "sharing the host",
    INPUT: "the input pipeline",
    WAITING: "waiting for the slowest rank",
    EXCHANGE: "the exchange that is not hidden",
    NORMS: "synchronised norms",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether more GPUs are faster than one; `is_good` is None where that is not known."""

    title: str
    symbol: str
    sentence: str
    is_good: bool | None


def answer(sweep: Sweep) -> Answer:
    """The answer, of the batch at which the speedup is largest."""
    families = [[cell for cell in family if _is_compared(cell)] for family in sweep.families()]
    compared = [cell for family in families for cell in family]
    if not compared:
        return _nothing(sweep)
    best = max(compared, key=lambda cell: cell.speedup or 0.0)
    family = next(family for family in families if best in family)
    sentence = f"{_at(sweep, best, len(families))}{_clauses(family)}{_missing(sweep, family)}."
    sentence = sentence[:1].upper() + sentence[1:]
    if sweep.is_weak:
        sentence += " The batch grows with the GPUs: that is other training than on one."
    if any(_low(cell) > 1 for cell in compared):
        return Answer(
            title=f"{times(best.speedup or 0.0)} times as fast", symbol="↑", sentence=sentence, is_good=True
        )
    if all(_high(cell) <= 1 for cell in compared):
        return Answer(title="Not faster", symbol="↓", sentence=sentence, is_good=False)
    return Answer(title="No clear gain", symbol="?", sentence=sentence, is_good=None)


def widest(sweep: Sweep) -> float | None:
    """Half of the widest interval of a step's time, as a part of the time."""
    halves = [
        (cell.step_high_s - cell.step_low_s) / 2 / cell.step_s
        for cell in sweep.cells
        if cell.step_s and cell.step_low_s is not None and cell.step_high_s is not None
    ]
    return max(halves, default=None)


def _nothing(sweep: Sweep) -> Answer:
    refused = next((mark.reason for mark in sweep.fairness if mark.is_refusal and mark.reason), "")
    failed = [cell for cell in sweep.cells if cell.reason]
    if refused:
        sentence = f"Whether more GPUs are faster than one cannot be told. {refused}"
        return Answer(title="Not comparable", symbol="?", sentence=sentence, is_good=None)
    sentence = "Whether more GPUs are faster than one is not known: no speedup was measured."
    if failed:
        last = failed[-1]
        sentence += f" {gpus(last.gpus)} at batch {last.batch_size}: {last.reason.rstrip('.')}."
    elif sweep.stopped_because:
        sentence += f" The sweep stopped: {sweep.stopped_because.rstrip('.')}."
    return Answer(title="Not measured", symbol="?", sentence=sentence, is_good=None)


def _at(sweep: Sweep, best: CellRow, num_families: int) -> str:
    if num_families == 1:
        return ""
    if sweep.is_weak:
        return f"with {number(best.batch_per_gpu)} examples on each GPU, "
    return f"at batch {best.batch_size}, "


def _clauses(cells: Sequence[CellRow]) -> str:
    """ "2 GPUs are 1.42 times as fast as one (1.38–1.47), 4 GPUs 2.1 times (2.0–2.2)"."""
    found, before = [], ""
    for cell in cells:
        if _low(cell) > 1:
            how = "are {} times as fast as one"
        elif _high(cell) <= 1:
            how = "are not faster than one: {} times as fast"
        else:
            how = "are not clearly faster than one: {} times as fast"
        told = ("{} times" if how == before else how).format(times(cell.speedup or 0.0))
        found.append(f"{gpus(cell.gpus)} {told} ({times(_low(cell))}–{times(_high(cell))})")
        before = how
    return ", ".join(found)


def _missing(sweep: Sweep, cells: Sequence[CellRow]) -> str:
    """What takes most of the speed that is missing, on the most GPUs of which it is known."""
    known = {(gap.gpus, gap.batch_size): gap for gap in sweep.gaps}
    cell = next((each for each in reversed(cells) if (each.gpus, each.batch_size) in known), None)
    if cell is None:
        return ""
    on = f"on {gpus(cell.gpus)} " if len(cells) > 1 else ""
    gap = known[cell.gpus, cell.batch_size]
    if (cell.speedup or 0.0) >= cell.ideal_speedup or gap.measured_s <= gap.ideal_s:
        return f"; {on}nothing is missing"
    if _high(cell) >= cell.ideal_speedup:
        return f"; {on}whether speed is missing cannot be told from noise"
    return f"; {on}{_goes_to(gap)}"


def _goes_to(gap: GapRow) -> str:
    bars = [part for part in gap.parts if part.seconds > 0 and not part.is_noise and part.name != UNDIVIDED]
    if any(part.name == UNDIVIDED for part in gap.parts):
        return "what takes the missing speed is not told apart"
    if not bars:
        return "what takes the missing speed cannot be told from noise"
    largest = max(bars, key=lambda part: part.seconds)
    is_most = largest.seconds > (gap.measured_s - gap.ideal_s) / 2
    much = "most" if is_most else "the largest part"
    where = _GOES_TO.get(largest.name, largest.name)
    cost = f"{seconds(largest.seconds)} of a step of {seconds(gap.measured_s)}"
    return f"{much} of the missing speed goes to {where} ({cost})"


def _is_compared(cell: CellRow) -> bool:
    return cell.gpus > 1 and cell.speedup is not None and cell.status != "refused"


def _low(cell: CellRow) -> float:
    return cell.speedup_low if cell.speedup_low is not None else (cell.speedup or 0.0)


def _high(cell: CellRow) -> float:
    return cell.speedup_high if cell.speedup_high is not None else (cell.speedup or 0.0)
