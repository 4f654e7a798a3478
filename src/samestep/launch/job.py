"""Job: what the ranks of one run are to do, as it passes from the command line to them in job.json."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samestep.errors import LaunchError
from samestep.record import read_json, write_json

Command = Literal["train", "evaluate", "predict", "script"]
Mode = Literal["fast", "bitwise"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command with its settings; the number of ranks is not among them."""

    command: Command
    target: str = ""
    overrides: tuple[str, ...] = ()
    mode: Mode = "fast"
    shards: int | None = None
    allow_drift: bool = False
    """Whether what bitwise mode cannot promise is let pass, and recorded, rather than refused."""
    resume: bool = False
    checkpoint: str | None = None
    data: str = "valid"
    timeout_s: float | None = None
    script: tuple[str, ...] = ()
    """For `script`: its path and arguments, or "-m", the module's name and arguments."""
    watch_every: int | None = None
    """Steps between two looks at ranks that are watched, below the probe; None for ranks that are not."""

    def write(self, folder: Path) -> None:
        write_json(folder / "job.json", dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Job":
        fields = read_json(folder / "job.json")
        if fields is None:
            raise LaunchError(
                f"{folder} holds no job.json that can be read; start runs with `samestep train`."
            )
        fields["overrides"] = tuple(fields["overrides"])
        fields["script"] = tuple(fields["script"])
        return cls(**fields)


def script_of(words: list[str]) -> tuple[str, ...]:
    """What follows `--` on the command line, without its `python`: a script or `-m module`, and arguments."""
    asked = " ".join(words)
    python, *rest = words
    if Path(python).name not in ("python", "python3") and python != sys.executable:
        raise LaunchError(
            f"The ranks were to run `{asked}`; only Python can be run on ranks: "
            "name one TARGET, or write `-- python script.py ARGS`."
        )
    if not rest or (rest[0] == "-m" and len(rest) == 1):
        raise LaunchError(
            f"The ranks were to run `{asked}`, which names no script: add a path or `-m module`."
        )
    if rest[0] != "-m":
        if rest[0].startswith("-"):
            raise LaunchError(
                f"The ranks were to run `{asked}`; of Python's own options "
                f"only `-m` can be used: leave out {rest[0]}."
            )
        if not Path(rest[0]).is_file():
            raise LaunchError(
                f"The ranks were to run the script {rest[0]}, which is not a file "
                f"seen from {Path.cwd()}: correct the path."
            )
    return tuple(rest)
