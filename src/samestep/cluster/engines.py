"""The engines by name."""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from samestep.cluster.engine import Engine
from samestep.cluster.htcondor import HTCondor
from samestep.cluster.local import Local
from samestep.cluster.ray import Ray
from samestep.cluster.slurm import Slurm

Name = Literal["slurm", "htcondor", "ray", "local"]
NAMES: tuple[Name, ...] = get_args(Name)
_ENGINES: Mapping[str, Callable[[], Engine]] = {
    "slurm": Slurm,
    "htcondor": HTCondor,
    "ray": Ray,
    "local": Local,
}


def engine_named(name: str) -> Engine:
    """The engine of that name."""
    return _ENGINES[name]()
