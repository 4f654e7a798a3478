"""Timing: how long steps take and where their time goes, at less than one percent of it.

    timing_clock     phases of single steps, and time set aside for what belongs to no step
    timing_course    whether the program trains or evaluates
    timing_blocks    a row for a few steps together
    timing_steps     models, backward passes, updates
    timing_loaders   batches
    timing_waits     exchanges, reads from a device, checkpoints

Nothing is looked into: no value is read but losses, and no device is waited for but at the end of a block.
An experiment changes here what it changes below the whole probe.
"""

from samestep.experiment import Experiment
from samestep.observations import ObservationWriter
from samestep.probe.adapters import Adapters
from samestep.probe.installation import Installation, changes_of_data, changes_of_models
from samestep.probe.naming import Names
from samestep.probe.origins import Origins
from samestep.probe.timing_blocks import TimingWatch
from samestep.probe.timing_course import Course
from samestep.probe.timing_loaders import TimingLoaders
from samestep.probe.timing_steps import Backwards, Forwards, Updates
from samestep.probe.timing_waits import Checkpoints, Exchanges, OwnPhases, Waits


class TimingInstallation(Installation):
    """The observers of the timing mode, in the place of all others; blocks have `num_steps`, or what is good.

    `is_cold`: the process was started for this program, and not forked from one that has torch.
    """

    def __init__(
        self,
        writer: ObservationWriter,
        num_steps: int | None = None,
        experiment: Experiment | None = None,
        *,
        is_cold: bool = True,
    ) -> None:
        experiment = experiment or Experiment()
        self.watch = self._timed = watch = TimingWatch(writer, num_steps, is_cold=is_cold)
        self._writer = writer
        names, origins, course = Names(), Origins(watch), Course(watch.clock)
        loaders = TimingLoaders(watch, origins, experiment.batches, course)
        backwards = Backwards(watch)
        self._parts = (
            names,
            Forwards(watch, names, course),
            backwards,
            Updates(watch, course),
            origins,
            *changes_of_data(experiment, origins),
            loaders,
            Adapters(watch, loaders),
            Exchanges(watch),
            Waits(watch),
            Checkpoints(watch),
            OwnPhases(watch, backwards),
            *changes_of_models(experiment, watch),
        )

    def uninstall(self) -> None:
        self._timed.blocks.close()
        super().uninstall()
