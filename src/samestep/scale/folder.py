"""Folder: what a sweep keeps on disk while it is made, so that it can go on after any end.

    DIR/
      sweep.json           what was asked for, of which program, where: it must be the same to go on
      looks/N/             a run of N ranks below the full probe; look.json is what it told
      runs/NNN-VARIANT/    timed runs, in the order in which they were made
      cells.jsonl          one line for each that is finished
      scale.json           the result, written again whenever the sweep ends or is interrupted

Knows files; starts nothing and judges nothing.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from samestep.errors import RecordError
from samestep.record import read_json, write_json
from samestep.scale.cells import VERSION, Result
from samestep.scale.looks import Look
from samestep.scale.runs import Finished, check_same, line_of, read_runs
from samestep.scale.variants import Variant

SETTINGS, CELLS = "sweep.json", "cells.jsonl"


def is_sweep(path: Path) -> bool:
    """Whether a sweep was begun in a folder."""
    return (path / SETTINGS).exists()


class SweepFolder:
    """The folder of a sweep; it must exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write down what was asked for, or refuse to go on with something else.

        As long as nothing was measured there is nothing to go on with: a program that could not be timed may
        be corrected, and asked for in the same folder.
        """
        kept = read_json(self.path / SETTINGS)
        if kept is None:
            if is_sweep(self.path):
                raise RecordError(
                    f"The sweep in {self.path} was to be continued, but its {SETTINGS} cannot be read; name "
                    "another folder with --out."
                )
            write_json(self.path / SETTINGS, {"version": VERSION, "settings": settings})
            return
        if kept.get("version") != VERSION or not isinstance(kept.get("settings"), dict):
            raise RecordError(
                f"The sweep in {self.path} was to be continued, but it is of version {kept.get('version')}, "
                f"and this Samestep writes version {VERSION}; name another folder with --out."
            )
        if any(run.is_measured for run in self.runs):
            check_same(settings, kept["settings"], self.path)
        elif settings != kept["settings"]:
            for name in ("looks", "runs"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            (self.path / CELLS).unlink(missing_ok=True)
            write_json(self.path / SETTINGS, {"version": VERSION, "settings": settings})

    def look(self, world_size: int) -> Look | None:
        """The look at so many ranks, if it was made."""
        return Look.read(self._look_path(world_size))

    def keep_look(self, look: Look) -> None:
        path = self._look_path(look.world_size)
        path.parent.mkdir(parents=True, exist_ok=True)
        look.write(path)

    def _look_path(self, world_size: int) -> Path:
        return self.path / "looks" / str(world_size) / "look.json"

    @property
    def runs(self) -> list[Finished]:
        """The runs that are finished."""
        return read_runs(self.path / CELLS)

    def keep(self, run: Finished) -> None:
        """Add a finished run."""
        path = self.path / CELLS
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":  # a line that was cut off by a crash
                    file.write(b"\n")
            file.write(line_of(run).encode())

    def write(self, result: Result) -> None:
        write_json(self.path / "scale.json", result.to_json())


def run_name(number: int, variant: Variant) -> str:
    """Where a run is kept, below the sweep's folder."""
    return f"runs/{number:03d}-{variant.name}"


def number_after(runs: Iterable[Finished]) -> int:
    """The number of the next run; a run that was made again has left a folder, too."""
    numbers = [int(run.folder.split("/")[1].partition("-")[0]) for run in runs if run.folder]
    return max(numbers, default=0) + 1


def look_name(world_size: int) -> str:
    return f"looks/{world_size}"
