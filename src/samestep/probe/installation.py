"""Installation: puts all observers and changes in place once torch is there, and takes them away."""

import os
from collections.abc import Sequence
from typing import Protocol

from samestep.experiment import Experiment
from samestep.observations import ObservationWriter
from samestep.probe.adapters import Adapters
from samestep.probe.backwards import Backwards
from samestep.probe.changes.batch_size import BatchSize
from samestep.probe.changes.caching import DataCached
from samestep.probe.changes.dropout import DropoutOff
from samestep.probe.changes.examples import ExamplesSeeded
from samestep.probe.changes.exchange import ExchangeOff
from samestep.probe.changes.lengths import Lengths
from samestep.probe.changes.local_norms import NormsLocal
from samestep.probe.changes.norms import NormsFrozen
from samestep.probe.clock_reads import ClockReads
from samestep.probe.collectives import Collectives
from samestep.probe.criteria import Criteria
from samestep.probe.fetches import Fetches
from samestep.probe.gradients import Gradients
from samestep.probe.loaders import Loaders
from samestep.probe.modules import Modules
from samestep.probe.naming import Names
from samestep.probe.optimizers import Optimizers
from samestep.probe.origins import Origins
from samestep.probe.said import Lines
from samestep.probe.schedules import Schedules
from samestep.probe.states import States
from samestep.probe.watch import Watch


class Part(Protocol):
    """Observes, or changes, one kind of thing from `install` until `uninstall`."""

    def install(self) -> None: ...

    def uninstall(self) -> None: ...


class Installation:
    """All observers and changes of one process; a child that is forked from it has the changes only."""

    def __init__(
        self, writer: ObservationWriter, steps_in_full: int, experiment: Experiment | None = None
    ) -> None:
        self.watch = watch = Watch(writer, steps_in_full)
        self._writer = writer
        experiment = experiment or Experiment()
        names, origins, fetches = Names(), Origins(watch), Fetches(watch)
        gradients, states = Gradients(watch, names), States(watch, names)
        loaders = Loaders(watch, origins, fetches, experiment.batches)
        # changes come last: what runs first before a call then sees the program as it is
        self._parts: Sequence[Part] = (
            names,
            gradients,
            Modules(watch, names, gradients, states),
            Optimizers(watch, names, gradients, states),
            origins,
            *changes_of_data(experiment, origins),
            fetches,
            loaders,
            Adapters(watch, loaders),
            Backwards(watch),
            Schedules(watch),
            Collectives(watch),
            Criteria(watch),
            Lines(watch),
            ClockReads(watch),
            *changes_of_models(experiment, watch),
        )

    def install(self) -> None:
        os.register_at_fork(after_in_child=self._leave_child)
        for part in self._parts:
            try:
                part.install()
            except Exception as error:
                # another release of torch may lack what one of them watches; the others still see theirs
                self.watch.trouble(type(part).__name__, error)

    def uninstall(self) -> None:
        for part in reversed(self._parts):
            part.uninstall()
        self.watch.is_on = False

    def _leave_child(self) -> None:
        self.watch.is_on = False
        self._writer.forget()


def changes_of_data(experiment: Experiment, origins: Origins) -> list[Part]:
    """Inside of what observes fetches, which then sees what is left of randomness."""
    changes: list[Part] = []
    if experiment.are_examples_seeded:
        changes.append(ExamplesSeeded())
    if experiment.lengths:
        changes.append(Lengths(origins, experiment.lengths))
    if experiment.batch_size is not None:
        changes.append(BatchSize(origins, experiment))
    if experiment.is_data_cached:
        changes.append(DataCached(origins, experiment))
    return changes


def changes_of_models(experiment: Experiment, watch: Watch) -> list[Part]:
    """Outside of what observes calls, so that what is left out is not timed."""
    changes: list[Part] = []
    if experiment.is_dropout_off:
        changes.append(DropoutOff())
    if experiment.are_norms_frozen:
        changes.append(NormsFrozen())
    if experiment.are_norms_local:
        changes.append(NormsLocal())
    if experiment.is_exchange_off:
        changes.append(ExchangeOff(watch, are_norms_local=experiment.are_norms_local))
    return changes
