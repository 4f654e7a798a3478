"""The command line: parse, one call, print. Knows no torch; the ranks have it.

Exit codes: 0 good, 1 the answer is "no", 2 it could not be answered, 130 stopped by the user, and for a run
that a scheduler stopped the one that it takes for "start me again": 85 for HTCondor, else 75.
"""

from samestep.cli import advise, checkpoints, demo, doctor, jobs, report, scale, submit, train, verify
from samestep.cli.app import app, main

__all__ = [
    "advise",
    "app",
    "checkpoints",
    "demo",
    "doctor",
    "jobs",
    "main",
    "report",
    "scale",
    "submit",
    "train",
    "verify",
]
