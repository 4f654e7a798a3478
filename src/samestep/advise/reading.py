"""Reading: cells from the folder of a sweep (`scale.json`) and from a CSV. Judges nothing; `cells` does."""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from samestep.advise.cells import Cell, cell_of
from samestep.errors import ConfigError, RecordError

_FILE = "scale.json"
_WHOLE = ("gpus", "nodes", "gpus_per_node")
_NUMBERS = ("batch_per_gpu", "batch_size", "step_s", "examples_per_s", "step_low_s", "step_high_s",
            "cpu_utilisation")  # fmt: skip
_WORDS = ("job", "machine")


def read(paths: Iterable[Path]) -> list[Cell]:
    """The cells of folders of `samestep scale` and of CSV files, one after another."""
    return [cell for path in paths for cell in (read_sweep(path) if path.is_dir() else read_csv(path))]


def read_sweep(folder: Path) -> list[Cell]:
    """What a sweep measured; cells that it refused or that failed are left out."""
    path = folder / _FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        rows, gaps = values["cells"], values.get("gaps", [])
        environment = values.get("environment") or {}
        machine = ", ".join(map(str, environment.get("devices") or ()))
        parts = {(gap["gpus"], gap["batch_size"]): _parts(gap) for gap in gaps if "batch_size" in gap}
        return [
            cell_of(
                {key: row.get(key) for key in (*_WHOLE, *_NUMBERS)}
                | {"job": str(values.get("target") or ""), "machine": machine,
                   "parts_s": parts.get((row["gpus"], row["batch_size"])),
                   "gpus_per_node": environment.get("num_gpus") or None},
                where=str(path),
            )
            for row in rows
            if row.get("status", "measured") == "measured" and row.get("step_s")
        ]  # fmt: skip
    except FileNotFoundError as error:
        raise RecordError(
            f"{folder} has no {_FILE}: make one with `samestep scale TARGET --out {folder}`"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} cannot be read as the result of `samestep scale` ({error!r})") from error


def _parts(gap: Mapping[str, Any]) -> dict[str, float]:
    return {part["name"]: float(part["seconds"]) for part in gap["parts"]}


def read_csv(path: Path) -> list[Cell]:
    """Lines with gpus, step_s or examples_per_s, and batch_per_gpu or batch_size, nodes, gpus_per_node, job
    and machine if they are known; other columns are not looked at."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path} cannot be read as a CSV ({error})") from error
    return [_line(path, number, line) for number, line in enumerate(lines, start=2)]


def _line(path: Path, number: int, line: Mapping[str | None, Any]) -> Cell:
    where = f"{path.name}, line {number}"
    values: dict[str, Any] = {}
    for column, text in line.items():
        name = (column or "").strip().lower()
        if name not in (*_WHOLE, *_NUMBERS, *_WORDS) or not (text or "").strip():
            continue
        if name in _WORDS:
            values[name] = text.strip()
            continue
        try:
            values[name] = int(text) if name in _WHOLE else float(text)
        except ValueError as error:
            kind = "a whole number" if name in _WHOLE else "a number with a point"
            raise ConfigError(f"{where}: {name} is {text.strip()!r}, but must be {kind}") from error
    return cell_of(values, where)
