import os

import pytest

import worlds


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
