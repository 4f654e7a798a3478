import contextlib
import os
import signal
import subprocess
import sys

import pytest


@pytest.fixture
def started():
    """Starts Python on a text, as a process that is ended with the test."""
    found = []

    def start(text):
        found.append(subprocess.Popen([sys.executable, "-c", text], start_new_session=True))
        return found[-1]

    yield start
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
