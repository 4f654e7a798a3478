"""Reading: cells from the folder of a sweep (`scale.json`), and of a CSV by `sheet`. Judges nothing."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.advise.cells import MOST_AROUND, Cell
from samestep.advise.named import NUMBERS, WHOLE, cell_of
from samestep.advise.sheet import read_csv
from samestep.errors import RecordError
from samestep.record import read_json

_FILE, _SETTINGS = "scale.json", "sweep.json"
_OF_JOB = ("--set", "--mode", "--shards")
"""Words of a sweep's command that make the same program another job."""
_CPU = "cpu"


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
        parts = {(gap["gpus"], gap["batch_size"]): _parts(gap) for gap in gaps if "batch_size" in gap}
        of_all = {
            "job": _job(values),
            "conditions": _conditions(folder, environment),
            # older ones know only how many they may use
            "gpus_per_node": environment.get("gpus_per_node") or environment.get("num_gpus") or None,
            # a sweep is of one machine
            "nodes": 1,
        }
        return [
            cell_of(
                of_all
                | {key: row[key] for key in (*WHOLE, *NUMBERS) if row.get(key) is not None}
                | _within_bounds(row)
                | {"speedup_around": _around(row)}
                | {
                    "machine": _machine(row.get("devices") or environment.get("devices") or (), environment),
                    "parts_s": parts.get((row["gpus"], row["batch_size"])),
                },
                where=str(path),
            )
            for row in rows
            if row.get("status", "measured") == "measured" and row.get("step_s")
        ]
    except FileNotFoundError as error:
        raise RecordError(
            f"{folder} has no {_FILE}, which `samestep scale TARGET --out FOLDER` makes: name such a folder"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} cannot be read as the result of `samestep scale` ({error!r})") from error


def _within_bounds(row: Mapping[str, Any]) -> dict[str, float]:
    """What a noisy measurement may say that cannot be: a step below nothing, more than all cores."""
    found = {}
    step_s = float(row["step_s"])
    if row.get("step_low_s") is not None:
        found["step_low_s"] = min(max(float(row["step_low_s"]), step_s / MOST_AROUND), step_s)
    if row.get("step_high_s") is not None:
        found["step_high_s"] = max(min(float(row["step_high_s"]), step_s * MOST_AROUND), step_s)
    if row.get("cpu_utilisation") is not None:
        found["cpu_utilisation"] = min(max(float(row["cpu_utilisation"]), 0.0), 1.0)
    return found


def _around(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval of its speedup over one GPU, as parts of it; None where it is not known."""
    speedup, low, high = (row.get(name) for name in ("speedup", "speedup_low", "speedup_high"))
    if row["gpus"] == 1 or not speedup or low is None or high is None:
        return None
    return float(low) / float(speedup), float(high) / float(speedup)


def _parts(gap: Mapping[str, Any]) -> dict[str, float]:
    return {part["name"]: float(part["seconds"]) for part in gap["parts"]}


def _job(values: Mapping[str, Any]) -> str:
    """The program, with what its command changed in it; the batch is the cells' own."""
    command = [str(word) for word in values.get("command") or ()]
    own = command[: command.index("--")] if "--" in command else command
    words = [f"{word} {own[place + 1]}" for place, word in enumerate(own[:-1]) if word in _OF_JOB]
    return " ".join([str(values.get("target") or ""), *words]).strip()


def _machine(devices: Iterable[str], environment: Mapping[str, Any]) -> str:
    """Models of devices; where ranks are on the processor, that is the device."""
    names = sorted(set(map(str, devices)))
    if names == [_CPU] and environment.get("cpu_model"):
        return f"{_CPU} {environment['cpu_model']}"
    return ", ".join(names)


def _conditions(folder: Path, environment: Mapping[str, Any]) -> dict[str, str]:
    """What else may make times differ, as far as it is known."""
    settings = (read_json(folder / _SETTINGS) or {}).get("settings")
    program = settings.get("text of the program") if isinstance(settings, Mapping) else None
    memory = environment.get("memory_bytes")
    known = {
        "processor": environment.get("cpu_model"),
        "cores": environment.get("num_cores"),
        # machines of one kind do not tell the same to the last byte
        "memory": f"{float(f'{memory / 2**30:.2g}'):g} GiB" if memory else None,
        "clock limits": _joined(environment.get("clock_limits_mhz") or (), " MHz"),
        "threads a rank": environment.get("threads_per_rank"),
        "torch": environment.get("torch"),
        "text of the program": None if program is None else str(program)[:8],
    }
    return {name: str(value) for name, value in known.items() if value}


def _joined(values: Sequence[Any], unit: str) -> str:
    return ", ".join(f"{value}{unit}" for value in values)
