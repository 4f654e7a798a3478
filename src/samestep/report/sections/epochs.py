"""The values at the end of each epoch, one row an epoch."""

from collections.abc import Mapping
from typing import Any

from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.wording import number, told

MOST_EPOCHS = 200
MOST_NAMES = 12


def _values(material: Material) -> Mapping[str, Any] | None:
    if material.record is None:
        return None
    # an epoch that was gone through again after resuming counts as it was the last time
    epochs = {row.get("epoch"): row for row in material.record.epochs()}
    rows = list(epochs.values())
    names = list(dict.fromkeys(name for row in rows for name in row["values"]))[:MOST_NAMES]
    if not names:
        return None
    shown = rows[-MOST_EPOCHS:]
    return {
        "names": names,
        "rows": [
            (
                told(row.get("epoch")),
                told(row.get("step")),
                [_told(row["values"].get(name)) for name in names],
            )
            for row in shown
        ],
        "num_hidden": len(rows) - len(shown),
    }


def _told(value: Any) -> str:
    return number(value) if isinstance(value, int | float) else "–"


SECTION = Section(name="epochs", title="Epochs", values=_values)
