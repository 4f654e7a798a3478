"""Said: lines with numbers in them that the program writes to its output and error streams."""

import re
import sys
from collections.abc import Callable
from typing import Any

from samestep.observed import Said
from samestep.probe.callers import where
from samestep.probe.watch import Watch

MOST_SAID = 2000
MOST_REDRAWN = 500
"""Of those, lines that the next is written over, as a progress bar's are."""
MOST_TEMPLATE = 200
MOST_WAITING = 2**14
"""Characters of a line that has not ended; of longer ones only the end is looked at."""

_ENDS = re.compile(r"[\r\n]+")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?>(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?)(?![a-z_]+\d)|(?:nan|inf)(?!\w))",
    re.IGNORECASE,
)


class Lines:
    """Observes `write` of the streams that are there when it is installed; what is written stays as it is."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._waiting = {"stdout": "", "stderr": ""}
        self._replaced: list[tuple[Any, Any]] = []
        self._num_left = MOST_SAID
        self._num_redrawn_left = MOST_REDRAWN

    def install(self) -> None:
        for name in self._waiting:
            stream = getattr(sys, name)
            # a stream that has a `write` of its own already, or takes none, is left alone
            if stream is None or "write" in getattr(stream, "__dict__", {"write": None}):
                continue
            wrapper = self._around(stream.write, name)
            stream.write = wrapper
            self._replaced.append((stream, wrapper))

    def uninstall(self) -> None:
        for stream, wrapper in self._replaced:
            if vars(stream).get("write") is wrapper:
                del stream.write
        self._replaced.clear()
        for name, waiting in self._waiting.items():
            if waiting and self._num_left > 0:
                with self._watch.looking("the last line"):
                    self._hear(name, "\n")

    def _around(self, original: Callable[[str], int], name: str) -> Callable[[str], int]:
        watch = self._watch

        def write(text: str, /) -> int:
            result = original(text)
            if self._num_left > 0 and watch.is_awake:
                with watch.looking("a line"):
                    self._hear(name, text)
            return result

        return write

    def _hear(self, stream: str, text: str) -> None:
        waiting = self._waiting[stream] + text
        begin = 0
        for end in _ENDS.finditer(waiting):
            line = _COLOURS.sub("", waiting[begin : end.start()])
            begin = end.end()
            if any(letter.isdigit() for letter in line) or _NUMBER.search(line):
                self._write(stream, line, is_redrawn="\n" not in end.group())
        self._waiting[stream] = waiting[begin:][-MOST_WAITING:]

    def _write(self, stream: str, line: str, is_redrawn: bool) -> None:
        template, numbers = template_of(line)
        if not numbers or (is_redrawn and self._num_redrawn_left <= 0):
            return
        self._num_left -= 1
        self._num_redrawn_left -= is_redrawn
        row = Said(
            step=self._watch.step,
            template=template,
            numbers=numbers,
            after_evaluation=self._watch.has_evaluated,
            stream=stream,
            where=where(),
        )
        self._watch.write(row)


def template_of(line: str) -> tuple[str, tuple[float, ...]]:
    """A line with `#` for each number, cut to a length, and the numbers that are left in it.

    Digits in words ("top5", "3x3", those of a digest) are no numbers; a unit may follow one ("12ms").
    """
    parts: list[str] = []
    numbers: list[float] = []
    length = begin = 0
    for found in _NUMBER.finditer(line):
        before = line[begin : found.start()]
        if length + len(before) >= MOST_TEMPLATE:
            break
        parts += [before, "#"]
        numbers.append(float(found.group()))
        length += len(before) + 1
        begin = found.end()
    parts.append(line[begin : begin + MOST_TEMPLATE - length])
    return "".join(parts), tuple(numbers)
