"""Voices: many ranks heard as one where they say the same, and by name where they differ.

`Choir` is the merging alone: lines and a clock in, lines out. It compares the k-th line of each rank; a rank
that said something extra is brought back in step at the next line that it shares with another. Invariant:
the lines of any one rank come out exactly as they went in, in order, whatever the others say.
`tail.py` reads the files.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

HOLD_S = 0.5
_LOOKAHEAD = 100
_MOST_HELD = 10_000

# What torch's C++ logging says in passing ("[W1115 22:27:08.74 socket.cpp:200] …"); it stays in the files.
_NOISE = re.compile(r"^(\[rank\d+\]:)?\[[IWE]\d{4} \d\d:\d\d:\d\d\S* +\S+\.(cpp|h|hpp|cc):\d+\]")


@dataclass(frozen=True, slots=True)
class Said:
    """One line, and the ranks that said it; `tag` is empty where all did."""

    text: str
    ranks: tuple[int, ...]
    tag: str = ""

    def __str__(self) -> str:
        return f"{self.tag} {self.text}" if self.tag else self.text


class _Turn:
    """The k-th lines of the ranks, those that have spoken so far: text → who said it."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.ranks_of: dict[str, list[int]] = {}


class Choir:
    """Merges the lines of one stream (standard output, say) of `size` ranks.

    A line is held back until every rank has spoken its own in that turn, but no longer than `hold_s`.
    """

    def __init__(self, size: int, *, hold_s: float = HOLD_S) -> None:
        self.size = size
        self.hold_s = hold_s
        self._turns: list[_Turn] = []
        self._next = [0] * size  # for each rank, the first turn that it has not spoken in
        self._gone: set[int] = set()

    def hear(self, rank: int, text: str, now: float) -> None:
        """Take in the next line of a rank."""
        place = self._next[rank]
        for index in range(place, min(place + _LOOKAHEAD, len(self._turns))):
            if text in self._turns[index].ranks_of:
                place = index
                break
        if place == len(self._turns):
            self._turns.append(_Turn(now))
        self._turns[place].ranks_of.setdefault(text, []).append(rank)
        self._next[rank] = place + 1

    def leave(self, rank: int) -> None:
        """No longer wait for a rank, which has ended."""
        self._gone.add(rank)

    def speak(self, now: float) -> list[Said]:
        """The lines that need not be held back any longer."""
        said: list[Said] = []
        while self._turns and (
            self._is_complete() or now - self._turns[0].since >= self.hold_s or len(self._turns) > _MOST_HELD
        ):
            said += self._utter()
        return said

    def close(self) -> list[Said]:
        """All that is still held back."""
        said: list[Said] = []
        while self._turns:
            said += self._utter()
        return said

    def _is_complete(self) -> bool:
        return all(self._next[rank] > 0 or rank in self._gone for rank in range(self.size))

    def _utter(self) -> list[Said]:
        turn = self._turns.pop(0)
        self._next = [max(0, place - 1) for place in self._next]
        said = []
        for text, ranks in sorted(turn.ranks_of.items(), key=lambda item: min(item[1])):
            tag = "" if len(ranks) == self.size else tag_of(ranks)
            said.append(Said(text, tuple(sorted(ranks)), tag))
        return said


def tag_of(ranks: Sequence[int]) -> str:
    """[rank 2], [ranks 0, 2], [ranks 0-3, 6]."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    names = ", ".join(str(a) if a == b else f"{a}{'-' if b > a + 1 else ', '}{b}" for a, b in runs)
    return f"[rank{'s' if len(ranks) > 1 else ''} {names}]"


def is_noise(text: str) -> bool:
    """Whether a line is torch's own logging rather than anything that was said to the user."""
    return bool(_NOISE.match(text)) or text == "terminate called without an active exception"
