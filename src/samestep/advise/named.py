"""Named: cells from values by name, as tables and notebooks have them. Judges no times beyond their units."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Real
from typing import Any

from samestep.advise.cells import Cell
from samestep.advise.words import gpus as told_gpus
from samestep.errors import ConfigError, listed

TIMES = ("step_s", "step_ms", "examples_per_s")
BATCHES = ("batch_per_gpu", "batch_size")
WHOLE = ("gpus", "nodes", "gpus_per_node", "accumulate")
NUMBERS = (*BATCHES, *TIMES, "step_low_s", "step_high_s", "cpu_utilisation")
TELLING = {
    "job": ("job", "model", "network", "program", "script", "target", "task", "dataset", "precision"),
    "machine": ("machine", "hardware", "device", "gpu", "gpu_model", "gpu_type", "instance", "partition"),
}
"""What tells jobs, and machines, apart."""
_DISAGREEMENT = 1.2
"""Examples a second may differ by this factor from what the step's time says: other work between steps."""
_ROUNDED = 0.01
"""Of a time that is told twice, in two units."""
_UNITS = (300.0, 3000.0)
"""A factor in here is milliseconds among seconds."""
_SHORTER = 0.8
"""Of a step with the same batch a GPU: no superlinear speedup is as good as this."""
_OPTIONAL = frozenset(
    {"nodes", "gpus_per_node", "accumulate", "step_low_s", "step_high_s", "cpu_utilisation"}
)


def cell_of(values: Mapping[str, Any], where: str = "a cell") -> Cell:
    """A cell from named values: gpus, and step_s, step_ms or examples_per_s, with a batch if it is known.

    Two that say the same are allowed if they agree.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{where} is {values!r}, but must have names: give {{'gpus': 1, 'step_s': 0.5}} or such"
        )
    known = {key: value for key, value in values.items() if not _is_absent(key, value)}
    check_batch_names(known, where)
    for key in (*WHOLE, *NUMBERS):
        if key in known and (isinstance(known[key], bool) or not isinstance(known[key], Real)):
            raise ConfigError(f"{key} of {where} is {known[key]!r}, but must be a number")
    # tables in memory have whole numbers as 4.0
    known |= {key: int(known[key]) for key in WHOLE if key in known and known[key] % 1 == 0}
    if "step_ms" in known:
        in_s = known["step_ms"] / 1000
        known.setdefault("step_s", in_s)
        if not math.isclose(known["step_s"], in_s, rel_tol=_ROUNDED):
            raise ConfigError(
                f"{where} has step_s {known['step_s']:g} and step_ms {known['step_ms']:g}, which are not the "
                "same time: leave one of them out"
            )
    if "gpus" not in known or not {"step_s", "examples_per_s"} & set(known):
        raise ConfigError(
            f"{where} has {listed(sorted(known)) or 'nothing'}, but needs gpus, and step_s or examples_per_s"
        )
    gpus = known["gpus"]
    if not gpus >= 1:
        raise ConfigError(f"gpus is {gpus} in {where}, but must be a whole number of 1 or more")
    batch = known.get("batch_per_gpu")
    if batch is None:
        batch = known["batch_size"] / gpus if "batch_size" in known else 1.0
    elif abs(known.get("batch_size", gpus * batch) - gpus * batch) >= gpus:  # a share may be rounded
        raise ConfigError(
            f"{where}: {told_gpus(gpus)} with batch_per_gpu {batch:g} have {gpus * batch:g} examples, but "
            f"batch_size says {known['batch_size']:g}: it is the batch of all GPUs together; give one of them"
        )
    step_s, rate = known.get("step_s"), known.get("examples_per_s")
    is_batch_known = bool(set(BATCHES) & set(known))
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise ConfigError(f"examples_per_s of {told_gpus(gpus)} in {where} is {rate}, but must be above 0")
    is_in_seconds = is_batch_known or step_s is not None
    if step_s is None:
        step_s = gpus * batch / rate
    elif rate is not None and step_s > 0 and is_batch_known:
        _check_units(gpus, batch, step_s, rate, where)
    own = {"gpus", "step_s", "batch_per_gpu", "is_batch_known", "is_in_seconds"}
    names = {each.name for each in fields(Cell)} - own
    others = {key: value for key, value in known.items() if key in names}
    for what, telling in TELLING.items():
        said = [str(known[name]) for name in telling if name in known]
        others |= {what: ", ".join(said)} if said else {}
    return Cell(
        gpus=gpus,
        step_s=step_s,
        batch_per_gpu=batch,
        is_batch_known=is_batch_known,
        is_in_seconds=is_in_seconds,
        **others,
    )


def _is_absent(key: str, value: Any) -> bool:
    """Whether a cell says nothing by this; tables in memory have NaN where a file has an empty place."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or value == "" or (is_nan and key in _OPTIONAL)


def _check_units(gpus: int, batch: float, step_s: float, rate: float, where: str) -> None:
    factor = step_s * rate / (gpus * batch)
    if 1 / _DISAGREEMENT <= factor <= _DISAGREEMENT:
        return
    hint = (
        "step_s looks like milliseconds" if _UNITS[0] < factor < _UNITS[1] else "see which of them is right"
    )
    raise ConfigError(
        f"{where}: {told_gpus(gpus)} with {batch:g} examples each in {step_s:g} s is "
        f"{gpus * batch / step_s:.4g} examples a second, but examples_per_s says {rate:.4g}: {hint}"
    )


def cells_of(values: Iterable[Cell | Mapping[str, Any]]) -> list[Cell]:
    """Cells, or named values of them, as cells."""
    found = list(values)
    named = [each for each in found if isinstance(each, Mapping)]
    without = [each for each in named if all(_is_absent(key, each.get(key)) for key in BATCHES)]
    if without and len(without) < len(named):
        raise ConfigError(
            f"{dict(without[0])} has no batch, but others have: give batch_per_gpu or batch_size for all"
        )
    cells = [each if isinstance(each, Cell) else cell_of(each) for each in found]
    rate = "examples_per_s"
    if without and all(_is_absent(rate, each.get(rate)) for each in without):
        check_batch_grows(
            [cell for cell, each in zip(cells, found, strict=True) if isinstance(each, Mapping)]
        )
    return cells


def check_batch_names(names: Iterable[str], where: str) -> None:
    """Refuse a batch by another name where there is none by its own: without it, it would be another job."""
    told = [str(name) for name in names]
    odd = [name for name in told if "batch" in name]
    if odd and not set(BATCHES) & set(told):
        raise ConfigError(
            f"{where} has {odd[0]}, which is not known: name it batch_size if it is the batch of all GPUs "
            "together, batch_per_gpu if it is that of one"
        )


def check_batch_grows(cells: Sequence[Cell], where: str = "a table") -> None:
    """Refuse steps that are much shorter on more GPUs, where nobody said the batch: it cannot have grown."""
    first = min(cells, key=lambda cell: cell.gpus)
    shorter = [cell for cell in cells if cell.step_s < _SHORTER * first.step_s and cell.gpus > first.gpus]
    if shorter:
        raise ConfigError(
            f"{where} has no batch, and a step takes {first.step_s:g} s on {told_gpus(first.gpus)} and "
            f"{shorter[0].step_s:g} s on {shorter[0].gpus}: add batch_size, or batch_per_gpu, so that it is "
            "known how many examples that is"
        )
