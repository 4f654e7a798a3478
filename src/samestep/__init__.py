"""Train on any number of GPUs. Take the same step. Know whether it pays.

Public names only, and loaded when first used: the command line must not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Loss": "samestep.task",
    "SamestepError": "samestep.errors",
    "Task": "samestep.task",
    "init": "samestep.train.session",
    "run": "samestep.train.loop",
    "supervised": "samestep.losses",
}

__all__ = ["Loss", "SamestepError", "Task", "__version__", "init", "run", "supervised"]

if TYPE_CHECKING:
    from samestep.errors import SamestepError
    from samestep.losses import supervised
    from samestep.task import Loss, Task
    from samestep.train.loop import run
    from samestep.train.session import init


_MODULES = ("hooks", "metrics", "nn")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"samestep.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'samestep' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
