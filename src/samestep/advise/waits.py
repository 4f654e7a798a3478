"""Waits: how long a job waits in the queue before it starts, for each number of GPUs.

A wait is never one number: what is expected, and what it is at most nine times out of ten. Knows figures that
somebody gave or counted, and what lies between them; `queue` asks schedulers for them.

Between two known numbers of GPUs, waits are linear in log N, so they stay between the two. Above the largest,
M, they are that of M · log2(2N) / log2(2M); below the smallest they are those of the smallest. So no wait
that is known to be longer makes another shorter. Where one is known only, all are as long. What was not given
is remarked upon.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from samestep.advise.words import gpus as told_gpus
from samestep.advise.words import percent
from samestep.errors import ConfigError

HIGH = 0.9
FEWEST_JOBS = 10
"""Of fewer, the longest wait is all that is known of the 90 %."""
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|min|h|d)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")
_HOW = "give it as in --wait 1=2m,4=3h, or with the median and the 90 % as in --wait 4=1h..5h"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A wait in the queue; `high_s` is not exceeded nine times out of ten, and never below `expected_s`."""

    expected_s: float
    high_s: float

    @classmethod
    def spread(cls, median_s: float, high_s: float) -> "Wait":
        """From a median and the 90 %.

        Above the median the wait is taken to be exponential, below it spread evenly, as far as it is to the
        90 % or to 0. With one figure for both it is that figure.
        """
        above_s = high_s - median_s
        expected_s = median_s - min(median_s, above_s) / 4 + above_s / (2 * math.log(0.5 / (1 - HIGH)))
        return cls(expected_s=expected_s, high_s=max(high_s, expected_s))

    @classmethod
    def counted(cls, waits_s: Sequence[float]) -> "Wait":
        """From waits of jobs."""
        expected_s = float(np.mean(waits_s))
        high_s = float(np.quantile(waits_s, HIGH)) if len(waits_s) >= FEWEST_JOBS else max(waits_s)
        return cls(expected_s=expected_s, high_s=max(high_s, expected_s))


NONE = Wait(expected_s=0.0, high_s=0.0)


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Waits by number of GPUs; without any, there is no queue."""

    known: Mapping[int, Wait] = field(default_factory=dict)
    source: str = ""
    """Where they are from, as part of a sentence."""
    remarks: tuple[str, ...] = ()
    num_jobs: Mapping[int, int] = field(default_factory=dict)
    """How many jobs each was counted from."""
    is_for_all: bool = False
    """Whether one wait was given for any number."""

    def at(self, gpus: int) -> Wait:
        """The wait of so many GPUs; known, between two known ones, or beyond them."""
        if not self.known:
            return NONE
        worlds = sorted(self.known)
        expected_s = _between(gpus, worlds, [self.known[n].expected_s for n in worlds])
        high_s = _between(gpus, worlds, [self.known[n].high_s for n in worlds])
        return Wait(expected_s=expected_s, high_s=max(high_s, expected_s))

    def about(self, asked: Iterable[int]) -> list[str]:
        """What has to be said of these waits where they are used for so many GPUs."""
        if not self.known or self.is_for_all:
            return list(self.remarks)
        worlds = set(asked)
        filled = {n: self._how(n) for n in sorted(worlds - set(self.known))}
        said = [
            f"{_waits_of([n for n in filled if filled[n] == how])} not {self.source}: taken to be {how}."
            for how in dict.fromkeys(filled.values())
        ]
        falls = [
            (fewer, more)
            for fewer, more in pairwise(sorted(self.known))
            if self.known[more].expected_s < self.known[fewer].expected_s
            and any(fewer <= n <= more for n in worlds)
        ]
        if falls:
            than = str(falls[0][0]) if len(falls) == 1 else "fewer"
            mores = _listed([more for _, more in falls])
            said.append(f"{mores} GPUs wait less than {than}, as {self.source}: kept as they are.")
        few = sorted(n for n, count in self.num_jobs.items() if count < FEWEST_JOBS)
        if few:
            said.append(
                f"Fewer than {FEWEST_JOBS} jobs tell the wait of {_gpus(few)}: "
                "the longest of them stands for the 90 %."
            )
        return [*self.remarks, *said]

    def _how(self, gpus: int) -> str:
        """How long a wait that nobody gave is taken to be."""
        least, most = min(self.known), max(self.known)
        if least < gpus < most:
            return "between what is known on both sides"
        if gpus < least or least == most or self.known[most].high_s == 0:
            return f"as long as for {least if gpus < least else most}"
        return (
            f"as long as for {most}, and {percent(1 / math.log2(2 * most))} of that more with each doubling"
        )


_DIGITS = 6
"""Of a number of GPUs that anybody has."""


def parse_waits(text: str) -> Waits:
    """Waits as somebody gives them: `1=2m,4=3h`, `4=1h..5h` (median..90 %), or one for any number, `2h`."""
    known: dict[int, Wait] = {}
    single = 0
    is_for_all = "=" not in text and "," not in text
    for part in (part.strip() for part in text.split(",")):
        world, _, wait = ("1", "", part) if is_for_all else part.partition("=")
        if not world.strip().isdecimal() or len(world) > _DIGITS or int(world) < 1:
            raise ConfigError(f"--wait has {part!r}, and {world.strip()!r} is no number of GPUs; {_HOW}.")
        if int(world) in known:
            raise ConfigError(f"--wait names {int(world)} GPUs twice, in {text!r}: {_HOW}.")
        median, dots, high = wait.partition("..")
        median_s = _seconds(median, part)
        high_s = _seconds(high, part) if dots else median_s
        if high_s < median_s:
            raise ConfigError(f"--wait has {part!r}: the 90 % is less than the median; {_HOW}.")
        single += not dots
        known[int(world)] = Wait.spread(median_s, high_s)
    remarks = ("A wait that is one figure counts as certain; give 1h..5h for its median and 90 %.",)
    return Waits(known=known, source="given", remarks=remarks if single else (), is_for_all=is_for_all)


def count_waits(jobs: Iterable[tuple[int, float]], *, source: str, remarks: Sequence[str] = ()) -> Waits:
    """Waits as jobs had them, from pairs of GPUs and seconds; jobs without GPUs are left out."""
    by_gpus: dict[int, list[float]] = defaultdict(list)
    for gpus, wait_s in jobs:
        if gpus > 0 and wait_s >= 0 and math.isfinite(wait_s):
            by_gpus[gpus].append(wait_s)
    said = list(remarks)
    if not by_gpus:
        said.append(f"No wait is {source}: no job with GPUs is there. The queue counts as empty.")
    return Waits(
        known={gpus: Wait.counted(waits) for gpus, waits in sorted(by_gpus.items())},
        source=source,
        remarks=tuple(said),
        num_jobs={gpus: len(waits) for gpus, waits in sorted(by_gpus.items())},
    )


def _between(gpus: int, worlds: Sequence[int], waits_s: Sequence[float]) -> float:
    if gpus <= worlds[-1] or len(worlds) == 1:
        return float(np.interp(math.log2(gpus), np.log2(worlds), waits_s))
    return waits_s[-1] * math.log2(2 * gpus) / math.log2(2 * worlds[-1])


def _waits_of(worlds: Sequence[int]) -> str:
    return f"The wait of {_gpus(worlds)} is" if len(worlds) == 1 else f"Waits of {_gpus(worlds)} are"


def _gpus(worlds: Sequence[int]) -> str:
    return told_gpus(worlds[0]) if len(worlds) == 1 else f"{_listed(worlds)} GPUs"


def _listed(worlds: Sequence[int]) -> str:
    ordered = [str(n) for n in sorted(worlds)]
    return ", ".join(ordered) if len(ordered) < 5 else f"{ordered[0]}, {ordered[1]} … {ordered[-1]}"


def seconds_of(text: str) -> float | None:
    """A time with a unit (90s, 2m, 3h, 1.5d), or as clocks and Slurm write it (1:30:00, 1-12:00:00)."""
    if found := _TIME.fullmatch(text.strip()):
        seconds = float(found[1]) * _UNITS_S[found[2]]
        return seconds if math.isfinite(seconds) else None
    if found := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return 86400 * days + 3600 * hours + 60 * minutes + seconds
    return 0.0 if text.strip() == "0" else None


def _seconds(text: str, part: str) -> float:
    seconds = seconds_of(text)
    if seconds is None:
        raise ConfigError(f"--wait has {part!r}, and {text.strip()!r} is no time with a unit; {_HOW}.")
    return seconds
