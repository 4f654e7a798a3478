"""Finding: one thing noticed about a run, with its evidence, its cause and what to do about it.

Knows nothing of where findings come from or how they are shown, and imports nothing heavy: the same
object goes from a rank to the record and from the record to every report.
"""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Finding"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing noticed; `cause` is a slug, `evidence` holds only values that JSON can write."""

    cause: str
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """The four fields, as an object for `json.dumps`."""
        return {
            "cause": self.cause,
            "message": self.message,
            "evidence": dict(self.evidence),
            "fix": self.fix,
        }
