"""A clock that is set forward and back by hours, several times a minute, for every process that finds this.

Python imports it at its start from a folder in PYTHONPATH. `time.monotonic` stays as it is: nobody sets it.
"""

import datetime
import time
from datetime import tzinfo
from typing import Any

_time, _time_ns = time.time, time.time_ns
_EVERY_S = 0.9
_HOURS = (0, -5, 3, 0, 26, -1)


def _ahead_s() -> int:
    # by the clock that all processes of a machine share, so that they jump together
    return 3600 * _HOURS[int(time.monotonic() / _EVERY_S) % len(_HOURS)]


class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + _ahead_s()
time.time_ns = lambda: _time_ns() + _ahead_s() * 10**9
datetime.datetime = _Datetime  # type: ignore[misc]
