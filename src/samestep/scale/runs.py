"""Runs: what is kept of a finished run, and the lines of cells.jsonl that it is kept in.

A line has all that judging needs, so that a sweep goes on, or is judged again, without the rows of its runs.
A line that was cut off by a crash is passed over: that run is made again. Knows files; judges nothing.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from samestep.errors import ConfigError
from samestep.scale.statistics import Blocks
from samestep.scale.variants import Variant

Status = Literal["finished", "cut", "failed", "stalled"]
TEXT = "text of the program"
"""The setting that is a digest of it."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """What only the one who starts a run can see.

    `other_cores`: how many cores' worth of work processes of others did meanwhile, on average: busy time of
    the machine less that of the run, over the time it took. `devices` and `clock_limits_mhz` are by rank.
    """

    num_cores: int
    other_cores: float | None = None
    devices: tuple[str, ...] = ()
    """Models of the devices, as their driver names them."""
    clock_limits_mhz: tuple[int, ...] = ()
    gpu_utilisation: float | None = None
    """Of the devices of all ranks, on average over the run."""
    power_w: float | None = None
    """Of those devices together; None where the driver does not tell."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The loader that the program trains on; `num_drawn` counts over all ranks, in one pass.

    None is what is not known.
    """

    num_workers: int
    num_examples: int | None = None
    num_drawn: int | None = None
    is_pinned: bool | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was true of a run, by rank where it may differ; times and counts are of steps after warm-up."""

    devices: tuple[str, ...]
    num_threads: tuple[int, ...]
    precisions: tuple[str, ...]
    rank_step_s: tuple[float, ...]
    """Mean time of a step."""
    rank_examples: tuple[float, ...] | None
    """Examples of a step, the median over blocks."""
    examples_between: tuple[float, float] | None = None
    """Over all ranks, of the block with fewest and of that with most: epochs end with a smaller batch."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Of a step, the mean over ranks."""
    evaluation_s: float = 0.0
    """Over the whole run, of the rank that had most; so are checkpoints."""
    checkpoint_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of a step, over all ranks."""
    memory_bytes: int = 0
    """Of the rank that had most: of its device, or of the process where that has none of its own."""
    gradient_bytes: int = 0
    wraps: tuple[str, ...] = ()
    num_synchronised_norms: int = 0
    loading: Loading | None = None
    steps_per_epoch: int | None = None
    """As the program itself says; only tasks do."""
    waits_per_step: float | None = None
    """Calls that wait for the device, such as `.item()`; None where nobody counted."""
    start_s: float | None = None
    """From the start of the processes to their first step; None of processes that were forked."""
    warm_up_s: float = 0.0
    """What the steps of warm-up took longer than as many others."""

    @property
    def examples_per_step(self) -> float | None:
        """Over all ranks."""
        return None if self.rank_examples is None else sum(self.rank_examples)

    @property
    def least_examples(self) -> float:
        return self.examples_between[0] if self.examples_between else self.examples_per_step or 0.0

    @property
    def most_examples(self) -> float:
        return self.examples_between[1] if self.examples_between else self.examples_per_step or 0.0

    @property
    def is_on_host(self) -> bool:
        return all(device.startswith("cpu") for device in self.devices)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that is over: which, how it ended, and what it measured.

    It has no blocks and no facts if it measured nothing.
    """

    variant: Variant
    round: int
    status: Status
    seconds: float
    """From its start to its end."""
    reason: str = ""
    """Why it failed, or has no times."""
    num_steps: int = 0
    num_warm_up: int = 0
    is_warm_up_over: bool = False
    blocks: Blocks = field(default_factory=lambda: Blocks(lockstep=(), mean=(), fastest=(), num_steps=()))
    facts: Facts | None = None
    host: Host | None = None
    folder: str = ""
    """Where its rows are, below the sweep's."""

    @property
    def is_measured(self) -> bool:
        is_good = self.status in ("finished", "cut") and self.facts is not None
        return is_good and bool(self.blocks.num_steps) and min(self.blocks.mean) > 0

    @property
    def num_kept(self) -> int:
        """Steps after warm-up."""
        return sum(self.blocks.num_steps)


def has_norms(runs: Iterable[Finished]) -> bool:
    """Whether the program synchronises norm layers on several ranks: then there is one more variant."""
    facts = (run.facts for run in runs if run.variant.gpus > 1 and run.variant.kind == "full")
    return any(each is not None and each.num_synchronised_norms > 0 for each in facts)


_FINISHED: TypeAdapter[Finished] = TypeAdapter(Finished)


def line_of(run: Finished) -> str:
    """A run as one line of JSON, its end included."""
    return json.dumps(dataclasses.asdict(run), allow_nan=False, separators=(",", ":")) + "\n"


def read_lines(lines: Iterable[bytes]) -> Iterator[Finished]:
    """The runs of lines that are whole; the last of those that were made twice."""
    found: dict[tuple[Variant, int], Finished] = {}
    for line in lines:
        if line.endswith(b"\n"):
            try:
                run = _FINISHED.validate_json(line)
            except ValidationError:
                continue
            found[run.variant, run.round] = run
    yield from found.values()


def read_runs(path: Path) -> list[Finished]:
    """The runs that are kept at `path`; none if there is no such file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        return list(read_lines(file))


def check_same(asked: Mapping[str, Any], kept: Mapping[str, Any], where: Path) -> None:
    """Refuse to go on with runs of other settings: they cannot be compared."""
    differ = [name for name in sorted(asked.keys() | kept.keys()) if asked.get(name) != kept.get(name)]
    if differ:
        told = "; ".join(_told_apart(name, kept.get(name), asked.get(name)) for name in differ[:5])
        raise ConfigError(
            f"The sweep in {where} was to be continued, but it was made with other settings: {told}. "
            "Ask for the same, or name another folder with --out."
        )


def _told_apart(name: str, kept: Any, asked: Any) -> str:
    if name == TEXT:
        return f"the {name} has changed since"  # two digests tell nobody anything
    return f"{name} is {_told(kept)} there and now {_told(asked)}"


def _told(value: Any) -> str:
    """A setting as it is typed."""
    if value is None:
        return "not given"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
