"""Runner: how a run is asked for, and what is known of it afterwards; who starts processes is not known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from samestep.experiment import Experiment
from samestep.launch.failure import Failure

Status = Literal["finished", "cut", "failed", "stalled"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is over, and where its observations are.

    It was `cut` if it had taken enough steps, and `stalled` if its ranks waited for one another for ever;
    `failure` tells which rank was the first to fail, or which ones waited.
    """

    name: str
    world_size: int
    folder: Path
    status: Status
    experiment: Experiment
    failure: Failure | None = None
    seconds: float = 0.0


class Runner(Protocol):
    """Runs the program that is verified on `world_size` ranks; `name` is unique within a verification.

    `why` says in a few words what the run is for.
    """

    def __call__(self, name: str, world_size: int, experiment: Experiment, *, why: str) -> Run: ...
