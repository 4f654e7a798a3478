import json
from dataclasses import FrozenInstanceError, fields

import pytest

from samestep.findings import Finding


def test_a_finding_has_four_fields_and_goes_through_json() -> None:
    finding = Finding(cause="a-slug", message="What is so.", evidence={"ranks": [0, 1]}, fix="Do this.")
    assert [field.name for field in fields(Finding)] == ["cause", "message", "evidence", "fix"]
    assert Finding(**json.loads(json.dumps(finding.to_json()))) == finding
    with pytest.raises(FrozenInstanceError):
        finding.cause = "other"
