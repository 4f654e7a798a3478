"""What a rule says to evidence, which has to be in a form that can be shown."""

import json

from samestep.findings import Finding


def told(rule, evidence):
    """The finding of a rule, or None; one at most, that JSON can write and that says what to do."""
    found = list(rule(evidence))
    assert len(found) <= 1, "a rule tells one thing"
    if not found:
        return None
    (finding,) = found
    assert json.loads(json.dumps(finding.to_json(), allow_nan=False))["cause"] == finding.cause
    assert finding.message and finding.fix
    return finding


def found(cause):
    """A finding of a rule that was asked before."""
    return Finding(cause=cause, message="", fix="")


def causes(verification):
    return [finding.cause for finding in verification.findings]
