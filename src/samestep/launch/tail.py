"""Tail: the lines that a growing file gained; and the ranks' files as one stream of voices."""

import os
import time
from pathlib import Path

from samestep.launch.voices import Choir, Said, is_noise, tag_of
from samestep.record import rank_folder

_MOST_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
BAR_EVERY_S = 5.0


class Tail:
    """Reads what was appended to a file since this object was made; the file need not exist yet.

    Bytes that are not UTF-8 are replaced. Of a line that was overwritten by carriage returns, as progress
    bars do, only the last state counts; `bar` is that state while such a line is still without its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rest = b""
        try:
            self._offset = path.stat().st_size
        except OSError:
            self._offset = 0

    def read(self, *, to_the_end: bool = False) -> list[str]:
        """The lines completed since the last call; `to_the_end` also takes one that lacks its newline."""
        lines: list[str] = []
        while True:
            new = self._bytes()
            *whole, self._rest = (self._rest + new).split(b"\n")
            lines += [_text(line) for line in whole]
            if len(self._rest) > _LONGEST_LINE:
                # a bar that was redrawn for hours keeps its last state; a line without end comes in pieces
                if b"\r" in self._rest[-_LONGEST_LINE:]:
                    self._rest = self._rest[-_LONGEST_LINE:]
                else:
                    lines.append(_text(self._rest))
                    self._rest = b""
            if not to_the_end:
                return lines
            if not new:
                if self._rest:
                    lines.append(_text(self._rest))
                    self._rest = b""
                return lines

    @property
    def bar(self) -> str | None:
        return (_text(self._rest) or None) if b"\r" in self._rest else None

    def _bytes(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size <= self._offset:
                    return b""
                file.seek(self._offset)
                new = file.read(_MOST_BYTES)
        except OSError:
            return b""
        self._offset += len(new)
        return new


def _text(line: bytes) -> str:
    """A line as a terminal would leave it: what follows the last carriage return that text follows."""
    states = [state for state in line.decode("utf-8", "replace").split("\r") if state]
    return states[-1] if states else ""


class Listener:
    """Follows standard output and error of all ranks of a run."""

    def __init__(self, folder: Path, size: int) -> None:
        self._size = size
        self._streams = [
            (Choir(size), [Tail(rank_folder(folder, rank) / f"{name}.log") for rank in range(size)])
            for name in ("stdout", "stderr")
        ]
        self._bar_shown = time.monotonic()
        self._last_bar: str | None = None

    def hear(self) -> list[Said]:
        """What is new and need not wait for other ranks."""
        return self._listen(to_the_end=False) + self._bars()

    def begin_again(self, size: int) -> list[Said]:
        """All the rest of ranks that are gone; from now on `size` others, no more than before, are heard."""
        said = self._listen(to_the_end=True)
        self._size = size
        self._streams = [(Choir(size), tails[:size]) for _, tails in self._streams]
        return said

    def close(self) -> list[Said]:
        """All the rest, once the ranks have ended."""
        return self._listen(to_the_end=True)

    def _listen(self, *, to_the_end: bool) -> list[Said]:
        said: list[Said] = []
        now = time.monotonic()
        for choir, tails in self._streams:
            for rank, tail in enumerate(tails):
                for line in tail.read(to_the_end=to_the_end):
                    if not is_noise(line):
                        choir.hear(rank, line, now)
            said += choir.close() if to_the_end else choir.speak(now)
        return said

    def _bars(self) -> list[Said]:
        """Now and then the state of one progress bar, that of the lowest rank that draws one."""
        now = time.monotonic()
        if now - self._bar_shown < BAR_EVERY_S:
            return []
        for _, tails in self._streams:
            for rank, tail in enumerate(tails):
                if tail.bar is not None and tail.bar != self._last_bar:
                    self._bar_shown, self._last_bar = now, tail.bar
                    return [Said(tail.bar, (rank,), tag_of([rank]) if self._size > 1 else "")]
        return []
