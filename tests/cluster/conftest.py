"""A real Slurm for the tests that want one."""

import importlib.util
import os
from pathlib import Path

import pytest

LAB = Path(__file__).parent / "slurm" / "lab.py"


def load_lab():
    spec = importlib.util.spec_from_file_location("slurm_lab", LAB)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Slurm's daemons, for as long as one file of tests runs; its commands find it by the environment."""
    yield from _opened(tmp_path_factory.mktemp("lab"), has_accounting=False)


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """The same with accounting."""
    yield from _opened(tmp_path_factory.mktemp("books"), has_accounting=True)


def _opened(folder, *, has_accounting):
    module = load_lab()
    reason = module.why_not(has_accounting=has_accounting)
    if reason is not None:
        if os.environ.get("SAMESTEP_TEST_SLURM") == "required":
            pytest.fail(f"SAMESTEP_TEST_SLURM is required, but {reason}")
        pytest.skip(f"no Slurm: {reason}")
    with module.Lab(folder, has_accounting=has_accounting) as lab, pytest.MonkeyPatch.context() as patch:
        for name, value in lab.env.items():
            patch.setenv(name, value)
        yield lab
