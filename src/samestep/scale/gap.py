"""Gap: from the ideal time of a step to the measured one, in bars that add up.

Every bar is a difference of two runs that differ in one thing. With T(1) the step on one GPU, f the part of
its batch that each of N GPUs has (1/N, or 1 if the batch grows with N), and times that are medians over
rounds:

    ideal                     f · T(1)
    smaller batch             alone − f · alone-full
    sharing the host          fastest rank of cached − alone
    input pipeline            mean of silent − mean of cached − f · (T(1) − alone-full)
    waiting for the slowest   lockstep of silent − mean of silent + mean of cached − fastest rank of cached
    exchange not hidden       local-norms (or full) − lockstep of silent
    synchronised norms        full − local-norms
    measured                  full

Means are over ranks; a host that is shared slows all ranks down, so it is the fastest that tells by how much,
and what ranks differ by is waiting. The sum telescopes. All times are in whole ticks (`statistics.TICK_S`),
f times a time too, so the differences are exact in floating point, and the bars add up to the last bit in any
order.
"""

from dataclasses import dataclass

from samestep.scale.cells import Gap, Part
from samestep.scale.estimates import Estimates
from samestep.scale.statistics import Floats, Series, on_ticks
from samestep.scale.variants import Comparison, Role

SMALLER_BATCH = "smaller batch"
SHARING = "sharing the host"
INPUT = "input pipeline"
WAITING = "waiting for the slowest"
EXCHANGE = "exchange not hidden"
NORMS = "synchronised norms"
UNDIVIDED = "not told apart"
"""The whole gap as one bar, where a run that would tell its parts apart is missing."""

_DIVIDING: tuple[Role, ...] = ("alone-full", "alone", "cached", "silent")


@dataclass(frozen=True)
class _Time:
    """A time in whole ticks, and draws of it."""

    seconds: float
    draws: Floats

    def __sub__(self, other: "_Time") -> "_Time":
        return _Time(self.seconds - other.seconds, self.draws - other.draws)

    def __add__(self, other: "_Time") -> "_Time":
        return _Time(self.seconds + other.seconds, self.draws + other.draws)

    def part(self, f: float) -> "_Time":
        """So many times this one."""
        return _Time(on_ticks(f * self.seconds), f * self.draws)


def gap(comparison: Comparison, estimates: Estimates, *, has_norms: bool) -> Gap | None:
    """The gap of a cell of several GPUs; None if it, or one GPU, was not measured."""
    roles = comparison.roles(has_norms=has_norms)
    if comparison.cell.gpus == 1 or not (estimates.has(roles["full"]) and estimates.has(roles["one"])):
        return None

    def time(role: Role, series: Series = "lockstep") -> _Time:
        return _Time(estimates.value(roles[role], series), estimates.draws(roles[role], series))

    f = float(comparison.ratio)
    full, ideal = time("full"), time("one").part(f)
    if all(estimates.has(roles[role]) for role in _DIVIDING):
        cached, silent, lockstep = time("cached", "mean"), time("silent", "mean"), time("silent")
        fastest = time("cached", "fastest")
        alone, alone_full = time("alone"), time("alone-full").part(f)
        bars = {
            SMALLER_BATCH: alone - alone_full,
            SHARING: fastest - alone,
            INPUT: (silent - cached) - (ideal - alone_full),
            WAITING: (lockstep - silent) + (cached - fastest),
        }
        if has_norms and estimates.has(roles["local-norms"]):
            local = time("local-norms")
            bars |= {EXCHANGE: local - lockstep, NORMS: full - local}
        else:
            bars |= {EXCHANGE: full - lockstep}
    else:
        bars = {UNDIVIDED: full - ideal}
    return Gap(
        gpus=comparison.cell.gpus,
        batch_size=comparison.cell.batch_size,
        ideal_s=ideal.seconds,
        measured_s=full.seconds,
        parts=tuple(
            Part(name=name, seconds=bar.seconds, low=around.low, high=around.high)
            for name, bar in bars.items()
            for around in [estimates.around_difference(bar.draws, bar.seconds, full.seconds)]
        ),
    )
