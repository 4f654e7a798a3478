"""The short form of the fault campaign: a fault of each kind, and the result of a run that had none."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
KINDS = ("ranks", "errors", "clock")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from benchmarks.faults.campaign import FEW, Campaign

        folder = tmp_path_factory.mktemp("faults")
        found = Campaign(seed=0, folder=folder, worlds=FEW, say=print)
        found.learn()
        yield found


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_changes_nothing(campaign, name):
    one_of_each = sys.modules["benchmarks.faults.campaign"].ONE_OF_EACH
    assert set(KINDS) <= set(one_of_each)
    before = sum(tally.faults for tally in campaign.tallies.values())
    assert campaign.round(name, one_of_each[name]), campaign.failures
    assert sum(tally.faults for tally in campaign.tallies.values()) > before, "no fault struck"


def test_control_a_result_that_differs_is_noticed(campaign):
    own = SimpleNamespace(
        out=campaign.folder / "reference", attempts=[SimpleNamespace(result=campaign.reference)]
    )
    assert campaign.differs(own) == ""
    for name, value in {"digest": "0" * 64, "examples": 1}.items():
        own.attempts[0].result = campaign.reference | {name: value}
        assert campaign.differs(own).startswith(f"{name} is {value}, without faults")
