"""Steps of two ranks on this machine, simulated from what was measured of them without exchange."""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chance import holds

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.simulate_here import WORKLOADS, Compared, Links, Timed

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.quiet, pytest.mark.timeout(900)]


@functools.cache
def measured(attempt):
    """The links of this machine, and what was measured and simulated by workload, anew by attempt."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        subprocess.run(
            [sys.executable, "-m", "benchmarks.simulate_here", "--quick", "--json", str(path)],
            cwd=ROOT, capture_output=True, timeout=280, check=True,
        )  # fmt: skip
        figures = json.loads(path.read_text())
    for row in figures["rows"]:
        row.pop("held")
    rows = {row["what"]: Compared(**row) for row in figures["rows"]}
    return Links(**{name: Timed(**told) for name, told in figures["links"].items()}), rows


def test_measured_steps_lie_between_best_and_worst():
    @holds
    def _(attempt):
        links, rows = measured(attempt)
        assert {what: row.is_held(links) for what, row in rows.items()} == dict.fromkeys(WORKLOADS, True)


def test_one_mostly_exchanges_and_the_other_does_not():
    """Without exchange the simulation would be wrong: the negative control."""

    @holds
    def _(attempt):
        links, rows = measured(attempt)
        shares = {what: row.simulated_s(links)[0] / row.silent_s - 1 for what, row in rows.items()}
        assert shares["exchanging"] > 2 * shares["computing"]
        slow = Timed(latency_s=links.idle.latency_s, bytes_per_s=links.idle.bytes_per_s / 100)
        assert not rows["exchanging"].is_held(Links(idle=slow, busy=slow))
