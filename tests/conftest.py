import pytest

import worlds


@pytest.fixture(scope="session", autouse=True)
def _close_worlds():
    yield
    worlds.close_all()
