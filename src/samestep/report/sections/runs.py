"""The runs that were made for a verdict: on how many ranks, what for, how they ended, how long they took."""

from collections.abc import Mapping
from typing import Any

from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.wording import duration

MOST_RUNS = 100
_ENDS = {
    "finished": "finished",
    "cut": "ended by Samestep: enough steps",
    "failed": "failed",
    "stalled": "its ranks waited for ever",
}


def _values(material: Material) -> Mapping[str, Any] | None:
    verification = material.verification
    if verification is None or not verification.runs:
        return None
    return {
        "runs": [
            (run, _ENDS.get(run.status, run.status), duration(run.seconds))
            for run in verification.runs[:MOST_RUNS]
        ],
        "num_hidden": max(0, len(verification.runs) - MOST_RUNS),
        "total": duration(sum(run.seconds for run in verification.runs)),
        "has_why": any(run.why for run in verification.runs),
    }


SECTION = Section(name="runs", title="Runs that were made", values=_values)
