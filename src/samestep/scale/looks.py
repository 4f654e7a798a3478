"""Looks: what a short run below the full probe tells of a program before it is timed.

Which loaders feed its steps, how many examples a step has on each rank, whether norm layers are synchronised,
whether ranks train on the same examples, and whether it reads clocks without waiting for its device. A look
is not timed. Knows rows; which runs follow from them is not its matter.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pydantic import TypeAdapter, ValidationError

from samestep.advise.noise import Noise
from samestep.observations import Observations
from samestep.observed import Step
from samestep.record import read_json, write_json
from samestep.scale.facts import is_synchronised_norm
from samestep.scale.noise import noise_of_look
from samestep.scale.runs import Status
from samestep.verify.trace import RankTrace, Trace

LOOK_STEPS = 16
CLOCK_READ, SYNCHRONIZE = "clock-read", "synchronize"


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen of a program on `world_size` ranks; None is what could not be told.

    `reason` says why there is nothing to time.
    """

    world_size: int
    status: Status
    seconds: float = 0.0
    reason: str = ""
    num_steps: int = 0
    rank_examples: tuple[float, ...] | None = None
    """Examples of a step on each rank, the median over steps."""
    batches_per_step: float = 1.0
    """Batches of a loader that a rank takes for one step."""
    is_loaded: bool = True
    """Whether there is a torch DataLoader: without one, nobody can change how many examples a step has."""
    is_joined: bool = True
    """Whether ranks made a process group: without one they exchange nothing."""
    loaders: tuple[str, ...] = ()
    """Lines of the loaders that are trained on."""
    num_synchronised_norms: int = 0
    repeats: float | None = None
    """Examples of a step over all ranks, for each different one."""
    num_seen: int = 0
    """Steps that were looked into."""
    num_clock_steps: int = 0
    """Of those, in which the program read a clock and did not wait for its device."""
    device: str = ""
    noise: Noise | None = None
    """Gradient noise scale, where a step was made of several parts."""

    @property
    def is_good(self) -> bool:
        """Whether there is something to time."""
        return not self.reason and self.num_steps > 0

    @property
    def batch_size(self) -> int | None:
        """The global batch."""
        return None if self.rank_examples is None else round(sum(self.rank_examples)) or None

    def write(self, path: Path) -> None:
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Look | None":
        """The look that is kept at `path`; None where there is none that can be read."""
        try:
            return _LOOK.validate_json(json.dumps(read_json(path)))
        except ValidationError:
            return None


_LOOK: TypeAdapter[Look] = TypeAdapter(Look)
TWICE = 1.5
"""From which on examples are taken twice, beside how often one rank takes them; padding adds fewer."""


def times_in_a_step(one: Look | None, many: Look | None) -> float | None:
    """How often an example is in a step of several ranks, for each time that it is in one of one rank.

    None if nobody can tell, as where one rank's examples are alike already: data that is made up, say.
    """
    if one is None or many is None or not one.repeats or one.repeats >= TWICE or many.repeats is None:
        return None
    return many.repeats / one.repeats


def look_of(
    observations: Observations, world_size: int, *, status: Status, seconds: float = 0.0, reason: str = ""
) -> Look:
    """What the observations of a run on `world_size` ranks tell; `reason` is why it failed, if it did."""
    trace = Trace(observations)
    seen = Look(world_size=world_size, status=status, seconds=seconds, reason=reason)
    if reason:
        return seen
    num_steps = min(rank.num_steps for rank in trace.ranks.values())
    if not num_steps or len(trace.ranks) < world_size:
        return dataclasses.replace(seen, reason=_why_no_steps(trace, world_size))
    steps = range(1, trace.num_full + 1)
    first = trace.first
    return dataclasses.replace(
        seen,
        num_steps=num_steps,
        rank_examples=_rank_examples(trace, steps),
        batches_per_step=_batches_per_step(first, steps),
        is_loaded=any(rank.loaders for rank in trace.ranks.values()),
        is_joined=any(rank.group is not None for rank in trace.ranks.values()),
        loaders=_lines(trace),
        num_synchronised_norms=_num_norms(first),
        repeats=_repeats(trace, steps),
        num_seen=trace.num_full,
        num_clock_steps=sum(map(_is_clock_unsynchronised, _rows(first, steps))),
        device="" if first.machine is None else first.machine.device,
        noise=noise_of_look(trace),
    )


def _why_no_steps(trace: Trace, world_size: int) -> str:
    on = f"{world_size} rank{'s' * (world_size > 1)}"
    if any(rank.num_spawned for rank in trace.ranks.values()):
        return (
            f"The program was run on {on}, and started processes of its own, which cannot be watched; let it "
            "train in the process that is started, as under torchrun."
        )
    return (
        f"The program was run on {on}, and took no step of an optimizer, so there is nothing to time; name "
        "the script that trains, with the arguments that make it train."
    )


def _rank_examples(trace: Trace, steps: range) -> tuple[float, ...] | None:
    counts = [counted for number in steps if (counted := trace.num_examples_by_rank(number)) is not None]
    if not counts:
        return None
    return tuple(float(median(count[rank] for count in counts)) for rank in trace.ranks)


def _batches_per_step(rank: RankTrace, steps: range) -> float:
    counts = [len(rank.steps[number].batches) for number in steps if number in rank.steps]
    return float(median(counts)) if counts and median(counts) >= 1 else 1.0


def _lines(trace: Trace) -> tuple[str, ...]:
    """Where the training loaders were made; none if one of them has no line that could be told."""
    found = {
        rank.loaders[loader].where
        for rank in trace.ranks.values()
        for loader in rank.training_loaders
        if loader in rank.loaders
    }
    return tuple(sorted(found)) if all(found) else ()


def _num_norms(rank: RankTrace) -> int:
    """Norm layers that say so by their class, or whose forward pass in training exchanges something."""
    by_class = {
        (row.model, norm.name)
        for rows in rank.models.values()
        for row in rows
        for norm in row.norms
        if is_synchronised_norm(norm.kind)
    }
    return len(by_class | {(row.model, row.name) for row in rank.statistics if row.num_collectives})


def _repeats(trace: Trace, steps: range) -> float | None:
    found = []
    for number in steps:
        examples = trace.examples(number)
        if examples:
            found.append(examples.total() / len(examples))
    return float(median(found)) if found else None


def _rows(rank: RankTrace, steps: range) -> Iterator[Step]:
    for number in steps:
        row = rank.steps[number].row if number in rank.steps else None
        if row is not None:
            yield row


def _is_clock_unsynchronised(step: Step) -> bool:
    """Whether a clock was read in a step, and the device was never waited for."""
    names = [event.name for event in step.events]
    return CLOCK_READ in names and SYNCHRONIZE not in names
