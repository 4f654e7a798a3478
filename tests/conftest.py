import os
import signal

import pytest

import worlds

# a shell's background job has Ctrl-C ignored, and so would have every program that the tests start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _close_worlds():
    yield
    worlds.close_all()


@pytest.fixture(autouse=True)
def _same_environment():
    """Libraries set variables when they are imported, as Lightning does; the next test must not see them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
