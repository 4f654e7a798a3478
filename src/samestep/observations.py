"""Observations: what a probe wrote down about each rank of a program that it watched; read without torch.

    FOLDER/ranks/NNNNN/observations.jsonl      one line a row, the first is a `Start`, the last an `End`
                       workers/L-P-W.jsonl     what worker W of loader L wrote in pass P

A launcher that starts the ranks again adds observations-1.jsonl and workers-1, -2 … beside it. Steps count
the calls of any optimizer's `step`, from 1; a row's `step` is the one that was under way or came next, and
states at step 0 are those that training began with. The first `Start.steps_in_full` steps are written in
full; of later ones only what `is_sampled` and `record.is_kept` let through. A rank's file never exceeds
`Start.most_bytes`: rows that would not fit are counted in `End.dropped`, and the `End` itself always fits.

This module knows rows and files. What a row means for a verdict is not its matter.
"""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from samestep.errors import RecordError
from samestep.observed import ROWS, VERSION, End, Row, Start
from samestep.record import rank_folder

if TYPE_CHECKING:
    import numpy as np

FORMAT = "samestep-observations"
STEPS_IN_FULL = 24
MOST_BYTES = 64 * 2**20
NUM_SAMPLED = 8
FLUSH_AT = 2**18
_KEPT_FREE = 2**16
"""Bytes set aside for the last row, whose texts are cut to fit."""

Kind = TypeVar("Kind")

_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def is_sampled(step: int) -> bool:
    """Whether a step after those in full is looked into: nine steps for each factor of ten."""
    return step % int(10 ** (len(str(step)) - 1)) == 0


def observations_path(folder: Path, rank: int, attempt: int = 0) -> Path:
    """Where the rows of a rank go, in the given attempt of a launcher that starts ranks again."""
    return rank_folder(folder, rank) / f"observations{f'-{attempt}' if attempt else ''}.jsonl"


def worker_path(path: Path, loader: int, number: int, worker: int) -> Path:
    """Where the rows of a loader's worker go, beside those of its rank at `path`."""
    return _workers_folder(path) / f"{loader}-{number}-{worker}.jsonl"


def _workers_folder(path: Path) -> Path:
    return path.parent / path.stem.replace("observations", "workers")


def sample_positions(name: str, num_elements: int) -> list[int]:
    """Where the sample of a tensor of that name is taken: the same places in every run and on every rank."""
    digest = hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8 * NUM_SAMPLED).digest()
    numbers = (int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(NUM_SAMPLED))
    return [number % num_elements for number in numbers] if num_elements else []


def multiset_print(indices: Sequence[int]) -> int:
    """How often each index occurs, in any order, as a number below 2 ** 64; prints of parts add up."""
    # here, because a program that is watched may have to set up its threads before numpy is loaded
    import numpy as np

    return int(mixed(np.asarray(indices, dtype=np.int64)).sum(dtype=np.uint64))


def mixed(numbers: "np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """Whole numbers spread over 64 bits, one to one: the finalizer of splitmix64 (Steele et al., 2014)."""
    import numpy as np

    x = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class ObservationWriter:
    """Appends rows of one rank, and never more than `most_bytes`; safe to call from any thread.

    Rows reach the file when `flush` is called or enough of them wait. A file that cannot be written to makes
    the writer silent: it must not end the program that is watched.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        for left_over in _workers_folder(path).glob("*-*-*.jsonl"):
            left_over.unlink()
        self._file: TextIO | None = path.open("w", encoding="utf-8")
        self._lock = Lock()
        self._lines: list[str] = []
        self._waiting_bytes = self.num_bytes = 0
        self._most_bytes = most_bytes
        self.dropped: Counter[str] = Counter()

    def write(self, row: Row, *, flush: bool = False) -> None:
        """Add a row, or count it as dropped."""
        line = encode(row)
        size = len(line.encode())
        with self._lock:
            free = self._most_bytes - self.num_bytes - (0 if isinstance(row, End) else _KEPT_FREE)
            if self._file is None or size > free:
                self.dropped[type(row).__name__] += 1
                return
            self._lines.append(line)
            self.num_bytes += size
            self._waiting_bytes += size
            if flush or self._waiting_bytes >= FLUSH_AT:
                self._flush()

    def flush(self) -> None:
        """Hand all rows to the system; they then survive the death of this process."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        with self._lock:
            self._flush()
            if self._file is not None:
                self._file.close()
                self._file = None

    def forget(self) -> None:
        """Let go of the file without a write: for a child process, in which it belongs to the parent."""
        self._lock = Lock()
        self._lines = []
        self._file = None

    def _flush(self) -> None:
        if self._file is not None and self._lines:
            try:
                self._file.write("".join(self._lines))
                self._file.flush()
            except (OSError, ValueError):
                self._file = None
        self._lines = []
        self._waiting_bytes = 0


class Observations:
    """What was written down about all ranks of one program, as far as it goes.

    Rows are read anew, one at a time, by each iterator. `remarks` says what could not be read.
    """

    def __init__(self, folder: Path, paths: Mapping[int, Path]) -> None:
        self.folder = folder
        self.remarks: list[str] = []
        self._paths = dict(paths)

    @classmethod
    def read(cls, folder: str | Path) -> "Observations":
        """Open the observations in `folder`; of ranks that were started again, the last attempt."""
        folder = Path(folder)
        paths: dict[int, Path] = {}
        attempts: dict[int, int] = {}
        for path in folder.glob("ranks/*/observations*.jsonl"):
            if path.parent.name.isdigit():
                rank, attempt = int(path.parent.name), int(path.stem.partition("-")[2] or 0)
                if attempt >= attempts.get(rank, 0):
                    paths[rank], attempts[rank] = path, attempt
        if not paths:
            raise RecordError(
                f"{folder} was to be read as what a probe observed, but no rank left any rows there; "
                "name the folder that `python -m samestep.probe` was given."
            )
        found = cls(folder, dict(sorted(paths.items())))
        for rank in found.ranks:
            found.start(rank)
        return found

    @property
    def ranks(self) -> list[int]:
        """The ranks that left rows, in order."""
        return list(self._paths)

    def start(self, rank: int) -> Start:
        """What was known of the rank before its program ran."""
        first = next(self.rows(rank), None)
        if isinstance(first, Start) and first.format == FORMAT and first.version == VERSION:
            return first
        told = f"version {first.version}" if isinstance(first, Start) else "no first row that can be read"
        raise RecordError(
            f"{self._paths[rank]} has {told}, and this Samestep reads version {VERSION} of its own rows; "
            "watch the program again."
        )

    def end(self, rank: int) -> End | None:
        """How the program ended on the rank; None if it was killed, left by `os._exit` or still runs."""
        return next(self.of(rank, End), None)

    def rows(self, rank: int) -> Iterator[Row]:
        """All rows of a rank, in the order in which they were made; then those of its loaders' workers."""
        path = self._paths[rank]
        yield from self._rows_in(path, f"rank {rank}")
        workers = _workers_folder(path).glob("*-*-*.jsonl")
        for each in sorted(workers, key=lambda each: [int(part) for part in each.stem.split("-")]):
            yield from self._rows_in(each, f"rank {rank}, {each.parent.name}/{each.name}")

    def _rows_in(self, path: Path, told: str) -> Iterator[Row]:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                row = decode(line) if line.endswith(b"\n") else None
                if row is not None:
                    yield row
                    continue
                note = f"{told}, line {number}: cut off or unknown, and passed over"
                if note not in self.remarks:
                    self.remarks.append(note)

    def of(self, rank: int, kind: type[Kind]) -> Iterator[Kind]:
        """The rows of one kind."""
        return (row for row in self.rows(rank) if isinstance(row, kind))


def encode(row: Row) -> str:
    """A row as one line of JSON; NaN and infinities, which JSON lacks, as the texts of those names."""
    values = {"row": type(row).__name__} | {
        field.name: getattr(row, field.name) for field in dataclasses.fields(row)
    }
    try:
        line = _JSON.encode(values)
        line.encode()
    except (TypeError, ValueError):
        # something that JSON lacks; most rows have nothing of the kind, and need not be gone through
        line = _JSON.encode(_plain(values))
    return line + "\n"


def decode(line: bytes) -> Row | None:
    """The row of a line, or None where it is not one of ours; fields of a later Samestep are left out."""
    try:
        values = json.loads(line)
        kind = ROWS[values.pop("row")]
        return typing.cast(Row, _build(kind, values))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, str | int):
        # a lone surrogate, as in a path that is not UTF-8, has no bytes in any file
        return value if not isinstance(value, str) else value.encode("utf-8", "backslashreplace").decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return str(value)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, value: Any) -> Any:
    """The value of a declared kind, from what JSON made of it."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{name: _build(hints[name], item) for name, item in value.items() if name in hints})
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _build(next(part for part in inside if part is not type(None)), value)
    if origin is tuple:
        return tuple(_build(inside[0], item) for item in value)
    if origin is dict:
        return {key: _build(inside[1], item) for key, item in value.items()}
    if kind is float and isinstance(value, str):
        return _NOT_FINITE[value]
    return float(value) if kind is float else value
