"""Quiet: since when ranks have neither written nor worked. A pure judgement on sizes and processor times.

Ranks that wait for one another sleep, so a busy processor means that something goes on, even where nothing is
written for long. But ranks may also wait busily, as for a GPU: after a much longer silence that counts as
waiting too.
"""

from collections.abc import Hashable
from dataclasses import dataclass

BUSY_SHARE = 0.02
"""The share of one processor up to which a rank may be awake and still waits: its threads look around."""
BUSILY = 10
"""How many times as long busy ranks may be silent."""


@dataclass
class Quiet:
    """Tells when ranks have been quiet for `after_s` seconds; their number is `size`."""

    after_s: float
    size: int
    _written: Hashable = None
    _silent_since: float | None = None
    _idle_since: float = 0.0
    _cpu_s: float = 0.0

    def look(self, now: float, written: Hashable, cpu_s: float | None) -> bool:
        """Whether it has been quiet for too long.

        `written` is anything that differs once a rank has written or ended, `cpu_s` the processor time of all
        ranks so far, None if it cannot be known.
        """
        if self._silent_since is None or written != self._written:
            self._written = written
            self._silent_since = self._idle_since = now
            self._cpu_s = cpu_s or 0.0
            return False
        most = BUSY_SHARE * self.after_s * self.size
        if cpu_s is None or abs(cpu_s - self._cpu_s) > most:
            self._idle_since, self._cpu_s = now, cpu_s or 0.0
        is_idle = now - self._idle_since >= self.after_s
        return is_idle or now - self._silent_since >= BUSILY * self.after_s
