"""Runner: how a run of a sweep is asked for, and what is known of it afterwards; not who starts it."""

from dataclasses import dataclass, field
from typing import Protocol

from samestep.experiment import Experiment
from samestep.scale.runs import Host, Status


@dataclass(frozen=True, kw_only=True)
class Order:
    """A run to make: into which folder below the sweep's, on how many ranks, and with what changed.

    Runs that are not timed are below the full probe. `is_cold` asks for processes that are started, not
    forked. `remaining_s` is how long the sweep still takes, if that can be told.
    """

    name: str
    world_size: int
    why: str
    experiment: Experiment = field(default_factory=Experiment)
    batch_size: int | None = None
    """The global batch of a task; None leaves the program's own."""
    is_timed: bool = True
    is_cold: bool = False
    number: int = 1
    round: int = 0
    remaining_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Made:
    """How a run ended; `reason` says why it failed, in a sentence."""

    status: Status
    seconds: float
    reason: str = ""
    host: Host | None = None


class Runner(Protocol):
    """Makes a run, and returns when nothing of it is left."""

    def __call__(self, order: Order) -> Made: ...
