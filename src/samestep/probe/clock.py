"""Clock: where the time of a step goes, each moment in one phase only."""

from threading import get_ident
from time import perf_counter


class Clock:
    """Charges time to the innermost phase that was entered; only the thread that made it is timed.

    What is not in any phase is "other", so the phases always add up to the time that passed. On devices that
    run behind the host these are times of the host.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        self._open = ["other"]
        self._since = perf_counter()
        self._spent: dict[str, float] = {}

    @property
    def phase(self) -> str:
        """The innermost phase of the program itself."""
        return next(phase for phase in reversed(self._open) if phase != "probe")

    def enter(self, phase: str) -> int:
        """Begin a phase within the one under way; returns what `leave` is to be given."""
        depth = len(self._open)
        if get_ident() == self._thread:
            self._charge()
            self._open.append(phase)
        return depth

    def leave(self, depth: int) -> None:
        """End a phase, and with it those inside that an exception may have left open."""
        if get_ident() == self._thread and depth < len(self._open):
            self._charge()
            del self._open[depth:]

    def move(self, seconds: float, source: str, to: str) -> None:
        """Charge time to another phase than was thought while it passed."""
        if get_ident() != self._thread:
            return
        self._charge()
        seconds = min(seconds, self._spent.get(source, 0.0))
        self._spent[source] = self._spent.get(source, 0.0) - seconds
        self._spent[to] = self._spent.get(to, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Seconds by phase since this was last asked."""
        self._charge()
        spent, self._spent = self._spent, {}
        return spent

    def _charge(self) -> None:
        now = perf_counter()
        phase = self._open[-1]
        self._spent[phase] = self._spent.get(phase, 0.0) + now - self._since
        self._since = now
