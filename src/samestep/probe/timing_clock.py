"""The clock of the timing mode: phases of single steps, and times that belong to no step.

Knows seconds and the names of phases. Which of them the program is in is told by others.
"""

from threading import get_ident
from time import monotonic, perf_counter
from typing import NamedTuple

from samestep.probe.clock import Clock

MOST_PIECES = 512


class Piece(NamedTuple):
    """Time in one phase without a break; `began_s` is by the monotonic clock."""

    phase: str
    began_s: float
    seconds: float


class TimingClock(Clock):
    """A clock that can be set aside: whatever phase is entered, time then goes to what it was set aside for.

    While `is_detailed`, it keeps the pieces that the time is made of, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_detailed = False
        self._pieces: list[Piece] = []
        self._aside: str | None = None
        self._marked: tuple[dict[str, float], int] | None = None
        self._to_monotonic = monotonic() - perf_counter()

    @property
    def now_s(self) -> float:
        """The end of all time that was charged, as `perf_counter` tells it."""
        return self._since

    @property
    def aside(self) -> str | None:
        """What the clock is set aside for."""
        return self._aside

    def monotonic_s(self, seconds: float) -> float:
        """A time of `perf_counter` on the monotonic clock, which processes of a machine share."""
        return seconds + self._to_monotonic

    def spent(self) -> dict[str, float]:
        """Seconds by phase since they were last taken, which goes on."""
        self._charge()
        return dict(self._spent)

    def restart(self) -> None:
        """Forget the time since this was last asked; it belongs to nothing."""
        self.take()
        self._pieces = []

    def set_aside(self, phase: str | None) -> None:
        """From now on all time belongs to the phase; None for the phases that are entered."""
        if phase != self._aside and get_ident() == self._thread:
            self._charge()
            self._aside = phase

    def mark(self) -> None:
        """Remember this moment, unless one is remembered already."""
        if self._marked is None and get_ident() == self._thread:
            self._charge()
            self._marked = dict(self._spent), len(self._pieces)

    def unmark(self) -> None:
        self._marked = None

    def set_aside_since_mark(self, phase: str) -> None:
        """Set aside what follows, and the time since the moment that was remembered, if one is."""
        if get_ident() != self._thread:
            return
        self._charge()
        if self._marked is not None and self._aside is None:
            before, first = self._marked
            since = sum(self._spent.values()) - sum(before.values())
            self._spent = before | {phase: before.get(phase, 0.0) + since}
            self._pieces[first:] = [piece._replace(phase=phase) for piece in self._pieces[first:]]
        self._marked = None
        self._aside = phase

    def turn(self, phase: str, at: float) -> None:
        """The innermost phase was another one since `at`, a time of `perf_counter`."""
        if get_ident() == self._thread:
            self._charge(max(at, self._since))
            self._open[-1] = phase

    def take_pieces(self) -> list[Piece]:
        """The pieces since this was last asked."""
        self._charge()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _charge(self, at: float | None = None) -> None:
        now = perf_counter() if at is None else at
        phase = self._aside or self._open[-1]
        seconds = now - self._since
        self._spent[phase] = self._spent.get(phase, 0.0) + seconds
        if self.is_detailed and seconds > 0.0 and len(self._pieces) < MOST_PIECES:
            self._pieces.append(Piece(phase, self.monotonic_s(self._since), seconds))
        self._since = now
