"""Findings: what was noticed, what to do about it, and the evidence; the words are the finding's own."""

from collections.abc import Mapping
from typing import Any

from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.wording import cut, label, told
from samestep.report.written import FindingRow

MOST_FINDINGS = 50
MOST_VALUES = 16
MOST_CHARACTERS = 500
"""Of one value; a fifth of it for a name."""


def _values(material: Material) -> Mapping[str, Any] | None:
    found = material.findings
    if not found:
        return None
    shown = [(finding, _evidence(finding)) for finding in found[:MOST_FINDINGS]]
    return {"findings": shown, "num_hidden": len(found) - len(shown)}


def _evidence(finding: FindingRow) -> list[tuple[str, str]]:
    known = [(name, value) for name, value in finding.evidence.items() if value not in (None, "")]
    shown = [
        (cut(label(name), MOST_CHARACTERS // 5), cut(_told(value), MOST_CHARACTERS))
        for name, value in known[:MOST_VALUES]
    ]
    num_hidden = len(known) - len(shown)
    return [*shown, ("more", f"{num_hidden:,} values")] if num_hidden else shown


def _told(value: Any) -> str:
    """As `told`; rows of a table one after another."""
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        return "; ".join(told({label(name): item for name, item in row.items()}) for row in value)
    return told(value)


SECTION = Section(name="findings", title="Findings", values=_values)
