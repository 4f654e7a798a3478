"""The sections of a page, in the order in which they are shown."""

from samestep.report.section import Section
from samestep.report.sections import environment, epochs, findings, remarks, repeat, runs, steps, training

SECTIONS: tuple[Section, ...] = (
    steps.SECTION,
    findings.SECTION,
    remarks.SECTION,
    training.SECTION,
    epochs.SECTION,
    runs.SECTION,
    repeat.SECTION,
    environment.SECTION,
)
