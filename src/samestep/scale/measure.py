"""Measure: a sweep from the first look at a program to its result.

    looks (one for each world) → the sweep → rounds of runs, until it is time to stop → judgement

Each run is made by a runner, and told by what it left in its folder. Finished runs are kept at once: a sweep
that was interrupted goes on where it was. No process and no torch here.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from samestep.errors import RecordError
from samestep.observations import Observations
from samestep.scale import judgement
from samestep.scale.asked import Asked
from samestep.scale.cells import Result
from samestep.scale.facts import finished
from samestep.scale.folder import SweepFolder, look_name, number_after, run_name
from samestep.scale.learning import curves_of, noise_of
from samestep.scale.looks import Look, look_of
from samestep.scale.plan import Plan, Planned, Sweep
from samestep.scale.runner import Made, Order, Runner
from samestep.scale.runs import Finished
from samestep.scale.variants import Variant

_WHY = {
    "full": "as it is",
    "local-norms": "norms not synchronised",
    "silent": "nothing exchanged",
    "cached": "nothing exchanged, nothing fetched",
}


@dataclass(kw_only=True)
class Measured:
    """A sweep as far as it has come; there is no result if it was interrupted before its first run."""

    looks: Mapping[int, Look]
    result: Result | None
    is_interrupted: bool = False


def measure(
    asked: Asked, folder: SweepFolder, runner: Runner, *, clock: Callable[[], float] = time.monotonic
) -> Measured:
    """Make what is missing of a sweep until it is over, or interrupted from the keyboard; then judge it."""
    asked.check()
    measurement = _Measurement(asked, folder, runner, clock)
    try:
        measurement.look_at_all()
        reason = measurement.make_rounds()
    except KeyboardInterrupt:
        result = measurement.judged("it was interrupted") if measurement.sweep is not None else None
        return Measured(looks=measurement.looks, result=result, is_interrupted=True)
    return Measured(looks=measurement.looks, result=measurement.judged(reason))


class _Measurement:
    """A sweep under way."""

    def __init__(self, asked: Asked, folder: SweepFolder, runner: Runner, clock: Callable[[], float]) -> None:
        self.looks: dict[int, Look] = {}
        self.sweep: Sweep | None = None
        """Known once all worlds have been looked at."""
        self._asked = asked
        self._folder = folder
        self._runner = runner
        self._clock = clock
        self._began = clock()
        kept = folder.runs
        # what failed is tried again: it may have been for want of something that is there now
        self._runs = [run for run in kept if run.is_measured]
        self._number = number_after(kept)
        self._remarks: list[str] = []

    def look_at_all(self) -> None:
        """Look at every world that was not looked at before."""
        for number, size in enumerate(sorted({1, *self._asked.worlds}), start=1):
            kept = self._folder.look(size)
            self.looks[size] = kept if kept is not None and kept.is_good else self._look_at(size, number)
            self._asked.check_look(self.looks[size])
        self.sweep, self._remarks = self._asked.sweep(self.looks)
        self._give_up_on_bad_worlds(self.sweep)
        self._give_up_on_other_batches(self.sweep)

    def _look_at(self, size: int, number: int) -> Look:
        batches = self._asked.batches
        order = Order(
            name=look_name(size),
            world_size=size,
            why="a look at what it does",
            is_timed=False,
            # the smallest, so that what fails for want of memory fails in its own cell
            batch_size=min(batches) if batches and self._asked.is_task else None,
            number=number,
        )
        made = self._runner(order)
        try:
            observations = Observations.read(self._folder.path / order.name)
        except RecordError as error:
            reason = made.reason or str(error)
            look = Look(world_size=size, status=made.status, seconds=made.seconds, reason=reason)
        else:
            look = look_of(observations, size, status=made.status, seconds=made.seconds, reason=made.reason)
        self._folder.keep_look(look)
        return look

    def _give_up_on_bad_worlds(self, sweep: Sweep) -> None:
        """Worlds in which the program fails, or takes no step, are told as such and not timed."""
        for comparison in sweep.comparisons:
            look, variant = self.looks[comparison.cell.gpus], comparison.roles(has_norms=False)["full"]
            if not look.is_good:
                run = Finished(
                    variant=variant, round=1, status="failed", seconds=look.seconds, reason=look.reason
                )
                self._keep(run)

    def _give_up_on_other_batches(self, sweep: Sweep) -> None:
        """A program without loaders has no other batch than its own, so parts of a gap are not told apart."""
        variants = self._asked.impossible(sweep, self.looks)
        for variant in variants:
            reason = "the program has no torch DataLoader that could be given another batch"
            self._keep(Finished(variant=variant, round=1, status="failed", seconds=0.0, reason=reason))
        if variants:
            self._remarks.append(
                "Where the time goes cannot be told apart: that takes steps of fewer examples on one rank, "
                "and the program has no torch DataLoader that could be given them."
            )

    def make_rounds(self) -> str:
        """Make runs until it is time to stop; why it is."""
        widths = judgement.half_widths(self._judged())
        while True:
            plan = self._plan
            if plan.is_between_rounds:
                result = self._judged()
                widths = judgement.half_widths(result)
                if plan.num_rounds and not any(cell.is_of_several for cell in result.cells):
                    return "no number of GPUs can be compared with one, which more rounds would not change"
            decision = plan.decide(widths, self._spent_s)
            if decision.is_over:
                return decision.reason
            planned = plan.missing()[0]
            order = self._order(planned, plan.remaining_s(widths, self._spent_s))
            self._keep(self._finished(order, planned, self._runner(order)))

    def _order(self, planned: Planned, remaining_s: float | None) -> Order:
        variant = planned.variant
        number, self._number = self._number, self._number + 1
        return Order(
            name=run_name(number, variant),
            world_size=variant.gpus,
            why=_why(variant),
            experiment=self._asked.experiment(variant, self.looks),
            batch_size=variant.batch_size if self._asked.is_task else None,
            # these tell how long a start takes; what is forked has most of it behind it
            is_cold=variant.kind == "full" and planned.round == 1,
            number=number,
            round=planned.round,
            remaining_s=remaining_s,
        )

    def _finished(self, order: Order, planned: Planned, made: Made) -> Finished:
        lines = sorted({line for look in self.looks.values() for line in look.loaders})
        about: dict[str, Any] = {
            "status": made.status,
            "seconds": made.seconds,
            "host": made.host,
            "folder": order.name,
        }
        try:
            observations = Observations.read(self._folder.path / order.name)
        except RecordError as error:
            reason = made.reason or str(error)
            return Finished(variant=planned.variant, round=planned.round, reason=reason, **about)
        return finished(
            observations, planned.variant, planned.round, reason=made.reason, lines=lines, **about
        )

    def _keep(self, run: Finished) -> None:
        self._folder.keep(run)
        self._runs.append(run)

    def judged(self, reason: str) -> Result:
        """The result of what there is, and why there is no more."""
        result = self._judged()
        result.stopped_because = reason
        result.remarks = self._remarks
        is_useful = any(cell.is_of_several for cell in result.cells)
        outlook = self._plan.outlook(judgement.half_widths(result)) if is_useful else None
        result.outlook = "" if outlook is None else str(outlook)
        result.environment = {"devices": self._devices(), "clock_limits_mhz": self._clock_limits()}
        assert self.sweep is not None, "there are no cells before the worlds were looked at"
        result.noise_scale = noise_of(self.looks)
        result.curves = curves_of(self.sweep, self._runs, self._folder.path)
        return result

    def _devices(self) -> list[str]:
        """Kinds of devices that ranks were on."""
        return sorted({device for run in self._runs if run.facts is not None for device in run.facts.devices})

    def _clock_limits(self) -> list[int]:
        """Of the devices that ranks were on, each once; none where the driver does not tell."""
        return sorted({mhz for run in self._runs if run.host for mhz in run.host.clock_limits_mhz})

    def _judged(self) -> Result:
        assert self.sweep is not None, "nothing is judged before the worlds were looked at"
        return judgement.judge(self.sweep, self._runs, has_norms=self._has_norms, looks=self.looks)

    @property
    def _plan(self) -> Plan:
        assert self.sweep is not None, "nothing is planned before the worlds were looked at"
        return Plan(self.sweep, self._runs, has_norms=self._has_norms)

    @property
    def _has_norms(self) -> bool:
        return any(look.num_synchronised_norms for size, look in self.looks.items() if size > 1)

    @property
    def _spent_s(self) -> float:
        return self._clock() - self._began


def _why(variant: Variant) -> str:
    what = _WHY[variant.kind] if variant.gpus > 1 or variant.kind == "full" else "nothing fetched"
    return f"batch {variant.batch_size}, {what}"
