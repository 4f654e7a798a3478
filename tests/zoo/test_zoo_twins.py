"""No correct twin of the zoo has a finding."""

import pytest
from runner import ForkRunner

from samestep.verify.plan import verify
from zoo import HERE, entries


@pytest.mark.parametrize(("folder", "name", "causes"), entries())
def test_a_correct_twin_has_no_finding(folder, name, causes, tmp_path):
    verification = verify(ForkRunner(HERE / folder / f"{name}_right.py", out=tmp_path), [1, 2])
    assert [finding.to_json() for finding in verification.findings] == []
    assert verification.verdict in ("same", "equal"), (verification.first_difference, verification.remarks)
