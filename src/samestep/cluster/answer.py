"""Answer: the file in which the command of a job leaves its answer, and that answer in a few words.

`samestep` ends with exit code 1 when the answer is “no”, and Python does after an error that nobody caught.
The file tells them apart: an attempt that has written it has an answer.
"""

from collections.abc import Mapping
from pathlib import Path

from samestep.cluster.request import Command
from samestep.record import read_json

FILES: Mapping[Command, str] = {"train": "result.json", "verify": "verdict.json", "scale": "scale.json"}
_OF_A_SWEEP = {0: "faster, or too close to call", 1: "not faster", 2: "not told"}
"""What `samestep scale` says by its exit code; scale.json has the numbers only."""


class Answer:
    """What one attempt is to answer, in the folder of its run; made before the attempt begins.

    An answer that is there already is another attempt's: a sweep that is continued has one.
    """

    def __init__(self, out: Path, command: Command) -> None:
        self._path = out / FILES[command]
        self._command = command
        self._before = self._stamp()

    def told(self, code: int) -> str:
        """The answer that came with an exit code, and where it is; empty if there is none."""
        word = self._word(code) if self._stamp() != self._before else ""
        if not word:
            return ""
        noun = "answer" if code in (0, 1) else "no answer"
        return f"{noun}: {word}; see {self._path.parent.name}/{self._path.name}"

    def _word(self, code: int) -> str:
        found = read_json(self._path)
        if found is None or code not in (0, 1, 2):
            return ""
        if self._command == "verify":
            return str(found.get("verdict", ""))
        if self._command == "scale":
            return _OF_A_SWEEP[code]
        return "stopped by itself" if code == 1 and found.get("status") == "stopped" else ""

    def _stamp(self) -> tuple[int, ...] | None:
        """What changes when the file is written, by whichever clock."""
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
