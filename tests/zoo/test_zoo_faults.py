"""Every fault of the zoo is found, with its cause named first."""

import pytest
from runner import ForkRunner

from samestep.verify.plan import verify
from zoo import HERE, entries


@pytest.mark.parametrize(("folder", "name", "causes"), entries())
def test_a_fault_is_found_with_its_cause(folder, name, causes, tmp_path):
    verification = verify(ForkRunner(HERE / folder / f"{name}.py", out=tmp_path), [1, 2])
    found = [finding.cause for finding in verification.findings]
    assert found and found[0] in causes, (found, verification.remarks)
    assert verification.verdict == "different"
