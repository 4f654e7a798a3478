"""The wish to stop, as this process heard of it: from a signal, a hook or the user's own code.

A wish of one rank becomes the decision of all in the exchange of the next step, never before.
"""

_reason: str | None = None


def request(reason: str) -> None:
    """Ask the training to stop after the step under way; the first reason counts. Fit for signal handlers."""
    global _reason
    if _reason is None:
        _reason = reason


def requested() -> str | None:
    """The reason, if stopping was asked for."""
    return _reason


def clear() -> None:
    """Forget the wish; for a process that trains again."""
    global _reason
    _reason = None
