"""Remarks: what an answer does not cover, and what could not be read of a record."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from samestep.report.material import Material
from samestep.report.section import Section

MOST_REMARKS = 50


def _values(material: Material) -> Mapping[str, Any] | None:
    answers = (material.verification, material.sweep)
    remarks = [remark for answer in answers if answer is not None for remark in answer.remarks]
    if material.record is not None:
        for rows in (material.record.steps(), material.record.epochs()):
            deque(rows, maxlen=0)  # remarks come up while a record is read
        remarks += material.record.remarks
    if not remarks:
        return None
    return {"remarks": remarks[:MOST_REMARKS], "num_hidden": max(0, len(remarks) - MOST_REMARKS)}


SECTION = Section(name="remarks", title="Remarks", values=_values)
