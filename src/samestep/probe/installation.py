"""Installation: puts all observers in place once torch is there, and takes them away."""

import os
from collections.abc import Sequence
from typing import Protocol

from samestep.observations import ObservationWriter
from samestep.probe.backwards import Backwards
from samestep.probe.collectives import Collectives
from samestep.probe.gradients import Gradients
from samestep.probe.loaders import Loaders
from samestep.probe.modules import Modules
from samestep.probe.naming import Names
from samestep.probe.optimizers import Optimizers
from samestep.probe.schedules import Schedules
from samestep.probe.states import States
from samestep.probe.watch import Watch


class Observer(Protocol):
    """Watches one kind of thing from `install` until `uninstall`, and writes rows through the watch."""

    def install(self) -> None: ...

    def uninstall(self) -> None: ...


class Installation:
    """All observers of one process; a child that is forked from it, such as a loader's worker, has none."""

    def __init__(self, writer: ObservationWriter, steps_in_full: int) -> None:
        self.watch = watch = Watch(writer, steps_in_full)
        self._writer = writer
        names = Names()
        gradients, states = Gradients(watch, names), States(watch, names)
        self._observers: Sequence[Observer] = (
            names,
            gradients,
            Modules(watch, names, gradients, states),
            Optimizers(watch, names, gradients, states),
            Loaders(watch),
            Backwards(watch),
            Schedules(watch),
            Collectives(watch),
        )

    def install(self) -> None:
        os.register_at_fork(after_in_child=self._leave_child)
        for observer in self._observers:
            try:
                observer.install()
            except Exception as error:
                # another release of torch may lack what one of them watches; the others still see theirs
                self.watch.trouble(type(observer).__name__, error)

    def uninstall(self) -> None:
        for observer in self._observers:
            observer.uninstall()
        self.watch.is_on = False

    def _leave_child(self) -> None:
        self.watch.is_on = False
        self._writer.forget()
