"""Everything Samestep refuses, as one tree.

    SamestepError
    ├── TargetError       the TARGET of a command cannot be found, read or understood
    ├── ConfigError       a setting is unknown, of the wrong kind, or contradicts another
    ├── DataError         the data set or sampler cannot be shared out as asked
    ├── LossError         the loss did not return what a step needs
    ├── ReplicaError      the ranks do not hold the same model
    ├── CheckpointError   a checkpoint is missing, damaged, foreign, or could not be written
    ├── LaunchError       the ranks could not be started
    └── RecordError       a folder holds no record, or one that cannot be read

The message of each is one or two sentences for the user: what was asked (with its value), what is true
(with its value), and what to do. The command line prints it as it is (with `--json`, as an object with an
`error`) and ends with exit code 2, without a traceback. Anything else that escapes is either the user's own
exception or a defect of Samestep.
"""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "LaunchError",
    "LossError",
    "RecordError",
    "ReplicaError",
    "SamestepError",
    "TargetError",
    "listed",
]


class SamestepError(Exception):
    """Root of what Samestep refuses; the message is meant for the user."""

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints instead of an answer."""
        return {"error": str(self)}


class TargetError(SamestepError):
    """The TARGET of a command cannot be found, read or understood."""


class ConfigError(SamestepError):
    """A setting is unknown, of the wrong kind, or contradicts another."""


class DataError(SamestepError):
    """The data set or sampler cannot be shared out as asked."""


class LossError(SamestepError):
    """The loss did not return what a step needs."""


class ReplicaError(SamestepError):
    """The ranks do not hold the same model."""


class CheckpointError(SamestepError):
    """A checkpoint is missing, damaged, foreign, or could not be written."""


class LaunchError(SamestepError):
    """The ranks could not be started."""


class RecordError(SamestepError):
    """A folder holds no record, or one that cannot be read."""


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names for a message: the first few, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
