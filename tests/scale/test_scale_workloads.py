"""Each trouble, in a program that really has it: `samestep scale` names it, and stays silent without it."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest

from chance import holds

pytestmark = [pytest.mark.quiet, pytest.mark.timeout(900)]
WORKLOAD = Path(__file__).with_name("workload.py")
NORMED = Path(__file__).with_name("normed.py")

TROUBLES = {
    "input-bound": ["--slow-example-s", "0.002"],
    "exchange-bound": ["--extra-parameters", "4000000", "--size", "12"],
    "stragglers": ["--late-rank-s", "0.05"],
    "evaluation-dominates": ["--evaluation-s", "0.5", "--examples", "256"],
    "checkpoint-dominates": ["--checkpoint-s", "0.5", "--examples", "256"],
    "duplicated-work": ["--no-shares"],
    "data-parallel": ["--data-parallel"],
    "short-epoch": ["--examples", "96"],
    "too-little-work-per-gpu": ["--size", "8", "--fixed-s", "0.02"],
}
"""By cause, the arguments that make the workload have it."""
LONGER = ("--rounds", "5", "--seconds", "0.6", "--budget", "2m")
"""For troubles that cost little more than runs differ by chance."""


@functools.cache
def sweep(*arguments, options=(), target=(), attempt=0):
    """What `samestep scale --json` says of the workload with these arguments, measured anew by attempt."""
    with tempfile.TemporaryDirectory() as folder:
        program = target or ("--", sys.executable, str(WORKLOAD), "--folder", folder, *arguments)
        ended = subprocess.run(
            [sys.executable, "-m", "samestep", "scale", "--gpus", "1,2", "--rounds", "3", "--seconds", "0.3",
             "--json", "--out", f"{folder}/sweep", *options, *program],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


def share(result, cause):
    """The part of the time that a cause costs; 0 if it was not named, 1 if it was and has no price."""
    return max(
        (f["evidence"].get("share", 1.0) for f in result["findings"] if f["cause"] == cause), default=0.0
    )


@pytest.mark.parametrize("cause", TROUBLES)
def test_trouble_is_named(cause):
    @holds
    def _(attempt):
        found, control = sweep(*TROUBLES[cause], attempt=attempt), sweep(attempt=attempt)
        assert share(found, cause) > 0
        # other work on the machine is no trouble of the program's, but it takes time as one does
        assert share(control, cause) < share(found, cause) / 2


def test_threads_beyond_the_cores_are_named():
    cores = len(os.sched_getaffinity(0))

    @holds
    def _(attempt):
        options = ("--threads", str(cores), *LONGER)
        found = sweep(options=options, attempt=attempt)["findings"]
        messages = [each["message"] for each in found if each["cause"] == "cpu-contention"]
        assert len(messages) == 1
        assert f"{2 * cores} threads (2 ranks of {cores}) on {cores} cores" in messages[0]


def test_norms_that_wait_are_named():
    @holds
    def _(attempt):
        assert share(sweep(options=LONGER, target=(str(NORMED),), attempt=attempt), "norm-bound") > 0
        assert share(sweep(attempt=attempt), "norm-bound") == 0


def test_the_bars_of_a_real_sweep_add_up():
    (gap,) = sweep()["gaps"]
    whole = Fraction(gap["measured_s"]) - Fraction(gap["ideal_s"])
    assert sum(Fraction(part["seconds"]) for part in gap["parts"]) == whole
