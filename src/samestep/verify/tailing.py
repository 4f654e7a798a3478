"""Tailing: the rows that a growing file of observations has gained. Knows bytes and rows, and no meaning."""

import os
from collections.abc import Iterator
from pathlib import Path

from samestep.observations import decode
from samestep.observed import Row

PIECE_BYTES = 2**15
LONGEST_ROW_BYTES = 2**22


class Tailing:
    """Reads a file that is being written, from its beginning, a piece at a time.

    The file need not exist yet, and may be begun anew. No more than a piece and a row is in memory at any
    time. A row longer than `LONGEST_ROW_BYTES`, or one that is none of ours, is passed over and counted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_passed_over = 0
        self._offset = 0
        self._rest = b""
        self._is_in_long_row = False

    def read(self) -> Iterator[Row] | None:
        """The rows that the next piece completes, to be used up before the next call; None at the end."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:  # begun anew
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                new = file.read(PIECE_BYTES)
        except OSError:
            return None
        if not new:
            return None
        self._offset += len(new)
        return self._rows(new)

    def _rows(self, new: bytes) -> Iterator[Row]:
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            row = None if self._is_in_long_row else decode(line)
            self._is_in_long_row = False
            if row is None:
                self.num_passed_over += 1
            else:
                yield row
        if len(self._rest) > LONGEST_ROW_BYTES:
            self._rest = b""
            self._is_in_long_row = True
