"""Unfinished: the answer of a sweep that wrote none, because it goes on or was killed.

DIR/cells.jsonl        a line for each finished run
DIR/looks/N/look.json  what was seen of the program on N ranks
DIR/sweep.json         what was asked for; without it, the runs tell
DIR/runs/…             rows of the runs, for their loss
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from samestep.report.written import Written, read_written
from samestep.scale.cells import VERSION
from samestep.scale.folder import CELLS, SETTINGS, SweepFolder
from samestep.scale.judgement import judge
from samestep.scale.learning import curves_of, noise_of
from samestep.scale.plan import Sweep
from samestep.scale.runs import Finished, has_norms, read_runs

_ENVIRONMENT = ("samestep", "torch", "python", "host", "num_gpus", "threads")


class _Settings(Written):
    """What was asked for, as far as it decides which cells there are."""

    worlds: tuple[int, ...] = Field(alias="--gpus")
    batches: tuple[int, ...] | None = Field(default=None, alias="--batch")
    is_weak: bool = Field(default=False, alias="--weak")
    seed: int = Field(default=0, alias="--seed")


class _Kept(Written):
    settings: dict[str, Any] = Field(default_factory=dict)


def judged_again(folder: Path) -> dict[str, Any] | None:
    """The answer so far, as scale.json would have it; None if no run is finished."""
    runs = read_runs(folder / CELLS)
    if not runs:
        return None
    kept = read_written(
        folder / SETTINGS, _Kept, version=VERSION, noun="a sweep", again="measure the program again"
    )
    settings = {} if kept is None else kept.settings
    environment = {name: settings[name] for name in _ENVIRONMENT if name in settings}
    sweep, at = _asked(settings, runs), SweepFolder(folder)
    looks = {size: look for size in {1, *sweep.worlds} if (look := at.look(size)) is not None}
    result = judge(sweep, runs, has_norms=has_norms(runs), looks=looks, environment=environment)
    result.stopped_because = "it wrote no answer: it goes on, or it was killed"
    result.noise_scale = noise_of(looks)
    result.curves = curves_of(sweep, runs, folder)
    return result.to_json()


def _asked(settings: dict[str, Any], runs: Sequence[Finished]) -> Sweep:
    try:
        asked = _Settings.model_validate(settings)
    except ValidationError:
        asked = None
    seen = _seen(runs)
    if asked is None:
        return seen
    if asked.batches is None:  # the program's own batch, which only its runs tell
        return Sweep(worlds=asked.worlds, batches=seen.batches, is_weak=seen.is_weak, seed=asked.seed)
    return Sweep(worlds=asked.worlds, batches=asked.batches, is_weak=asked.is_weak, seed=asked.seed)


def _seen(runs: Sequence[Finished]) -> Sweep:
    """The sweep that such runs are made for, if it was of one batch or the whole of its cells was run."""
    full = [run.variant for run in runs if run.variant.kind == "full"]
    ones = {variant.batch_size for variant in full if variant.gpus == 1}
    several = [variant for variant in full if variant.gpus > 1]
    is_weak = any(variant.batch_size not in ones for variant in several) and all(
        variant.batch_size in {variant.gpus * one for one in ones} for variant in several
    )
    batches = {
        variant.batch_size // variant.gpus if is_weak else variant.batch_size
        for variant in full or [run.variant for run in runs]
    }
    worlds = {variant.gpus for variant in full} or {1}
    return Sweep(worlds=tuple(sorted(worlds)), batches=tuple(sorted(batches)), is_weak=is_weak)
