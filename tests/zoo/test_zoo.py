"""Every fault of the zoo is found with its cause, and no correct twin has a finding."""

import importlib.util
from pathlib import Path

import pytest
from runner import ForkRunner

from samestep.verify.plan import verify

HERE = Path(__file__).parent


def entries():
    for folder in ("plain", "accelerate", "lightning", "transformers"):
        path = HERE / folder / "entries.py"
        spec = importlib.util.spec_from_file_location(f"zoo_{folder}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for entry in module.ENTRIES:
            yield pytest.param(folder, entry.name, entry.causes, id=f"{folder}/{entry.name}")


@pytest.mark.parametrize(("folder", "name", "causes"), entries())
def test_a_fault_is_found_with_its_cause(folder, name, causes, tmp_path):
    verification = verify(ForkRunner(HERE / folder / f"{name}.py", out=tmp_path), [1, 2])
    found = [finding.cause for finding in verification.findings]
    assert found and found[0] in causes, (found, verification.remarks)
    assert verification.verdict == "different"


@pytest.mark.parametrize(("folder", "name", "causes"), entries())
def test_its_correct_twin_has_no_finding(folder, name, causes, tmp_path):
    verification = verify(ForkRunner(HERE / folder / f"{name}_right.py", out=tmp_path), [1, 2])
    assert [finding.to_json() for finding in verification.findings] == []
    assert verification.verdict in ("same", "equal"), (verification.first_difference, verification.remarks)
