"""A `.npy` file that grows row by row, so that predictions never have to fit in memory."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from samestep.errors import DataError


class GrowingArray:
    """Rows appended to a `.npy` file; the file can be read by NumPy after `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._dtype: np.dtype[Any] | None = None
        self._row_shape: tuple[int, ...] = ()
        self._num_rows = 0
        self._header_bytes = 0

    def append(self, rows: "np.ndarray[Any, Any]") -> None:
        """Add rows of the dtype and shape that the first ones had."""
        if self._dtype is None:
            self._dtype, self._row_shape = rows.dtype, rows.shape[1:]
            self._write_header()
            self._header_bytes = self._file.tell()
        if (rows.dtype, rows.shape[1:]) != (self._dtype, self._row_shape):
            raise DataError(
                f"{self.path.stem} has rows of shape {rows.shape[1:]} and {self._row_shape}; return a list "
                "with one tensor an example where shapes vary."
            )
        self._file.write(np.ascontiguousarray(rows).tobytes())
        self._num_rows += len(rows)

    def close(self) -> None:
        """Write the number of rows into the header."""
        if self._dtype is not None:
            self._file.seek(0)
            self._write_header()
            assert self._file.tell() == self._header_bytes, "NumPy left no room for the number of rows"
        self._file.close()

    def _write_header(self) -> None:
        assert self._dtype is not None
        npy.write_array_header_1_0(
            self._file,
            {
                "descr": npy.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self._num_rows, *self._row_shape),
            },
        )
