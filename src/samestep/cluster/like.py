"""Like: what a run, or the advice on a sweep, tells of the needs of a training like it.

A run tells its own time, whatever the world size: on more ranks it takes no longer, or they are of no use.
The advice on a sweep tells the time on each number of ranks, measured or projected.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any

from samestep.errors import ConfigError
from samestep.record import Record, read_json

SWEEP, ADVICE = "scale.json", "advice.json"
START_S = 180
"""What a job may need until its first step."""
MORE = 1.5
"""What a run may take longer than the one that it is like."""


def times_like(folder: Path, worlds: Sequence[int]) -> dict[int, int]:
    """The time limits that trainings like the one in `folder` need, in seconds, by their world sizes."""
    if (folder / SWEEP).is_file():
        return {world: _minutes(START_S + _advised_s(folder, world)) for world in worlds}
    return dict.fromkeys(worlds, _minutes(START_S + MORE * _run_s(folder)))


def threads_like(folder: Path) -> int | None:
    """The threads of a rank in what is in `folder`, which are what a rank like it has use for."""
    sweep = read_json(folder / SWEEP)
    about = Record.read(folder).about if sweep is None else sweep
    threads = about.get("threads" if sweep is None else "threads_per_rank")
    return threads if isinstance(threads, int) and threads > 0 else None


def _run_s(folder: Path) -> float:
    """How long all steps of a run take: its median step for each, or what it took with all around them."""
    record = Record.read(folder)
    result = record.result or {}
    seconds = [row["step_s"] for row in record.steps() if isinstance(row.get("step_s"), int | float)]
    total = record.about.get("num_steps") or result.get("steps")
    if len(seconds) < 3 or not isinstance(total, int):
        raise ConfigError(
            f"--like {folder} is to tell how long a run takes, but its record has {len(seconds)} timed steps "
            f"of {total}: run it for a few steps, or give --time."
        )
    in_steps_s: float = median(seconds) * total
    # one that was resumed knows the time of its last part only
    is_whole = result.get("status") == "finished" and not record.about.get("resumed_at_step")
    return max(in_steps_s, float(result["seconds"])) if is_whole and "seconds" in result else in_steps_s


def _advised_s(folder: Path, world: int) -> float:
    """How long training takes on so many ranks, at the upper end of what was measured or projected."""
    advice = read_json(folder / ADVICE)
    if advice is None:
        raise ConfigError(
            f"--like {folder} is a sweep, which does not know how long the training is: call "
            f"`samestep advise {quote(str(folder))} --epochs N` first, which keeps its answer there, or give "
            "--time."
        )
    rows: list[dict[str, Any]] = advice["rows"]
    known = {row["gpus"]: row["same_batch"]["train_high_s"] for row in rows}
    if world not in known:
        raise ConfigError(
            f"--like {folder}: {world} ranks were asked for, and its advice knows "
            f"{', '.join(map(str, sorted(known)))}: call `samestep advise {quote(str(folder))} --to {world}` "
            "with the length of the run, or give --time."
        )
    return float(known[world])


def _minutes(seconds: float) -> int:
    """Up to the next whole minute, the finest that schedulers know."""
    return math.ceil(seconds / 60) * 60
