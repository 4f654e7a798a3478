"""Sheet: cells from a CSV, as people and spreadsheets write it. Judges no times; `cells` does.

    gpus, and step_s, step_ms or examples_per_s      needed
    batch_per_gpu or batch_size, accumulate, nodes, gpus_per_node, step_low_s, step_high_s, cpu_utilisation
    job, model, program, precision …                 any of these tells jobs apart
    machine, device, gpu, hardware …                 any of these tells machines apart

Commas, semicolons or tabs stand between columns; but between commas, numbers may have a decimal comma. Other
columns are not looked at; but a batch by another name is refused, since without it all would be another job.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samestep.advise.cells import Cell
from samestep.advise.named import (
    BATCHES,
    NUMBERS,
    TELLING,
    TIMES,
    WHOLE,
    cell_of,
    check_batch_grows,
    check_batch_names,
)
from samestep.errors import ConfigError, RecordError, listed

_NUMERIC = {*WHOLE, *NUMBERS}
_KNOWN = {*_NUMERIC, *(name for names in TELLING.values() for name in names)}
_BETWEEN = (",", ";", "\t")


def read_csv(path: Path) -> list[Cell]:
    """The cells of all lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            text = file.read()
        between = max(_BETWEEN, key=lambda mark: _num_known(text, mark))
        header, *lines = list(csv.reader(text.splitlines(), delimiter=between, skipinitialspace=True)) or [[]]
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} cannot be read as a CSV ({error}): save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise RecordError(f"{path} cannot be read as a CSV ({error})") from error
    names = [_name(column) for column in header]
    if "gpus" not in names or not set(TIMES) & set(names):
        told = listed([column.strip() for column in header if column.strip()]) or "none"
        raise ConfigError(
            f"{path.name} has the columns: {told}. It needs gpus, and one of step_s, step_ms and "
            "examples_per_s: name them so in its first line."
        )
    twice = sorted({name for name in names if name in _KNOWN and names.count(name) > 1})
    if twice:
        raise ConfigError(f"{path.name} has the column {twice[0]} more than once: keep one of them.")
    check_batch_names(names, path.name)
    for number, line in enumerate(lines, start=2):
        if any(text.strip() for text in line[len(names) :]):
            raise ConfigError(
                f"{path.name}, line {number} has {len(line)} values for {len(names)} columns: if numbers "
                "have a decimal comma, put semicolons between columns."
            )
    has_batch = bool(set(BATCHES) & set(names))
    found = [
        _cell(
            f"{path.name}, line {number}", dict(zip(names, line, strict=False)), between, has_batch=has_batch
        )
        for number, line in enumerate(lines, start=2)
        if any(text.strip() for text in line)
    ]
    if not found:
        raise ConfigError(f"{path.name} has a first line and no other: add one for each number of GPUs")
    if not has_batch and "examples_per_s" not in names:
        check_batch_grows(found, path.name)
    return found


def _num_known(text: str, between: str) -> int:
    first = text.partition("\n")[0]
    return sum(_name(column) in _KNOWN for column in first.split(between))


def _name(column: str) -> str:
    return column.strip().strip('"').lower().replace(" ", "_")


def _cell(where: str, line: Mapping[str, str], between: str, *, has_batch: bool) -> Cell:
    given = {name: text.strip() for name, text in line.items() if name in _KNOWN and text.strip()}
    values: dict[str, Any] = {
        name: _number(where, name, text, between) if name in _NUMERIC else text
        for name, text in given.items()
    }
    needed = {"gpus": ("gpus",), "a time (step_s or examples_per_s)": TIMES}
    if has_batch:
        needed |= {"a batch (batch_per_gpu or batch_size)": BATCHES}
    missing = [what for what, names in needed.items() if not set(names) & set(values)]
    if missing:
        raise ConfigError(f"{where} lacks {listed(missing)}: fill it in, or leave the line out")
    try:
        return cell_of(values, where)
    except ConfigError as error:
        said = str(error)
        raise ConfigError(said if where in said else f"{where}: {said}") from error


def _number(where: str, name: str, text: str, between: str) -> float | int:
    """A number; a whole one may end in .0, as some programs write it."""
    plain = text.replace(",", ".") if between != "," and text.count(",") == 1 and "." not in text else text
    try:
        value = float(plain)
        if name not in WHOLE:
            return value
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    kind = "a whole number" if name in WHOLE else "a number with a point"
    raise ConfigError(f"{where}: {name} is {text!r}, but must be {kind}")
