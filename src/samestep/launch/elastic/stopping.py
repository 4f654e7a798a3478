"""Whether this host or member was asked to stop.

Ranks hear the same signals and leave in good order; here they only mean not to start any again.
"""

import signal
from types import FrameType

_is_stopping = False


def heed() -> None:
    """Note the signals that ask to stop, instead of dying of them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, _note)


def asked() -> bool:
    """Whether such a signal came."""
    return _is_stopping


def _note(number: int, frame: FrameType | None) -> None:
    global _is_stopping
    _is_stopping = True
