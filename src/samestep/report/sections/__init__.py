"""The sections of a page, in the order in which they are shown."""

from samestep.report.section import Section
from samestep.report.sections import (
    advice,
    environment,
    epoch_gap,
    epochs,
    findings,
    gap,
    learning,
    noise,
    remarks,
    repeat,
    runs,
    speed,
    steps,
    timeline,
    training,
    trust,
    utilisation,
)

SECTIONS: tuple[Section, ...] = (
    steps.SECTION,
    advice.SECTION,
    speed.SECTION,
    gap.SECTION,
    epoch_gap.SECTION,
    findings.SECTION,
    trust.SECTION,
    remarks.SECTION,
    timeline.SECTION,
    utilisation.SECTION,
    learning.SECTION,
    noise.SECTION,
    training.SECTION,
    epochs.SECTION,
    runs.SECTION,
    repeat.SECTION,
    environment.SECTION,
)
