"""A real Slurm, and two machines with a link, for the tests that want one."""

import os

import pytest
from namespaces import lab as namespaces
from slurm import lab as slurm


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Slurm's daemons, for as long as one file of tests runs; its commands find it by the environment."""
    yield from _slurm(tmp_path_factory.mktemp("lab"), has_accounting=False)


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """The same with accounting."""
    yield from _slurm(tmp_path_factory.mktemp("books"), has_accounting=True)


@pytest.fixture(scope="module")
def nodes():
    """Two nodes that are network namespaces, with a link of 1 Gbit/s."""
    _skip_if(namespaces.why_not(), "network namespaces", "SAMESTEP_TEST_NETNS")
    with namespaces.Lab(1e9) as lab:
        yield lab


def _slurm(folder, *, has_accounting):
    _skip_if(slurm.why_not(has_accounting=has_accounting), "Slurm", "SAMESTEP_TEST_SLURM")
    with slurm.Lab(folder, has_accounting=has_accounting) as lab, pytest.MonkeyPatch.context() as patch:
        for name, value in lab.env.items():
            patch.setenv(name, value)
        yield lab


def _skip_if(reason, what, variable):
    """Skip where something cannot be had, or fail if it must be."""
    if reason is None:
        return
    if os.environ.get(variable) == "required":
        pytest.fail(f"{variable} is required, but {reason}")
    pytest.skip(f"no {what}: {reason}")
