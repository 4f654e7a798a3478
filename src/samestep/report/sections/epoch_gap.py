"""Where the speed of an epoch goes: its steps, and what is done beside them."""

from collections.abc import Mapping
from typing import Any

from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.sections.gap import drawn


def _values(material: Material) -> Mapping[str, Any] | None:
    gaps = material.sweep.gaps if material.sweep is not None else ()
    return drawn([(gap, gap.epoch) for gap in gaps if gap.epoch is not None], name="epoch")


SECTION = Section(name="epoch_gap", title="Where an epoch’s time goes", short="Epoch", values=_values)
