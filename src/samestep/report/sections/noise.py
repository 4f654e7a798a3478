"""The gradient noise scale: up to which batch more GPUs help training, and not only throughput."""

import math
from collections.abc import Mapping
from typing import Any

from samestep.advise.noise import examples_factor, steps_factor
from samestep.report.figures import gpus
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.sweep import NoiseRow
from samestep.report.wording import counted, number

MOST_BATCHES = 20


def _values(material: Material) -> Mapping[str, Any] | None:
    sweep = material.sweep
    scale = sweep.noise_scale if sweep is not None else None
    if sweep is None or scale is None or not (scale.value or scale.reason):
        return None
    value = scale.value if scale.value is not None and 0 < scale.value < math.inf else None
    batches = sorted({cell.batch_size for cell in sweep.cells}) if value is not None else []
    return {
        "value": None if value is None else _told(value),
        "reason": (scale.reason or "the value is no number of examples").rstrip("."),
        "rows": _rows(scale),
        "batches": [
            (number(batch), _factor(examples_factor(batch, value)), _factor(steps_factor(batch, value)))
            for batch in batches[:MOST_BATCHES]
            if value is not None
        ],
        "num_hidden": max(0, len(batches) - MOST_BATCHES),
    }


def _rows(scale: NoiseRow) -> list[tuple[str, str]]:
    low = _told(scale.low) if _is_known(scale.low) else "0"
    high = _told(scale.high) if _is_known(scale.high) else "not bounded"
    rows = [("interval of 95 %", f"{low} to {high}")] if _is_known(scale.low) or _is_known(scale.high) else []
    if scale.num_steps:
        on = f" on {gpus(scale.from_gpus)}" if scale.from_gpus else ""
        rows.append(("from", f"gradients of {counted(scale.num_steps, 'step')}{on}"))
    return rows


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _told(value: float | None) -> str:
    return number(float(f"{value or 0.0:.3g}"))


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 10 else number(float(f"{value:.3g}"))


SECTION = Section(name="noise", title="How large a batch helps", short="Batch", values=_values)
