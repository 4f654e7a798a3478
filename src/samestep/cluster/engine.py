"""Engine: what Samestep wants of a scheduler, and what it says where there is none."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from samestep.cluster.jobs import Sight
from samestep.cluster.request import Request
from samestep.errors import LaunchError

Files = dict[str, str]
"""The texts of the files that an engine reads, by their names."""


class Engine(Protocol):
    """A scheduler. Jobs are named by its own ids, each with the folder of its request."""

    @property
    def name(self) -> str: ...

    def files(self, request: Request) -> Files:
        """The files of a request; nothing is written or asked."""

    def check(self) -> None:
        """Refuse a machine from which nothing can be handed over."""

    def submit(self, folder: Path, request: Request) -> list[str]:
        """Hand over the request whose files are in `folder`; one id an item."""

    def look(self, jobs: Mapping[str, Path]) -> dict[str, Sight]:
        """How jobs stand; those that the scheduler no longer knows are left out.

        A LaunchError says that it could not be asked.
        """

    def cancel(self, jobs: Mapping[str, Path]) -> None:
        """Have jobs ended."""


def missing(engine: str, *tools: str) -> None:
    """Refuse a machine that has not all of these tools."""
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        raise LaunchError(
            f"--on {engine} was asked for, but {', '.join(absent)} is not on the PATH of this machine: do "
            "this where the scheduler's commands are, look at the files with --dry-run, or use --on local."
        )
