"""Request: what a job is to run and what it needs; as it passes from the command line to the job, as a file.

Engines turn a request into their own words. Nothing in it is ever read by a shell.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from samestep.errors import ConfigError, LaunchError
from samestep.record import read_json, write_json

FILE = "request.json"
Command = Literal["train", "verify", "scale"]
Device = Literal["gpu", "cpu"]

TARBALLS = (".tar.gz", ".tgz")
CONDA_FILES = (".yml", ".yaml")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The resources of one job; ranks are spread evenly over its nodes, each with a GPU of its own.

    With the device `cpu` no GPU is asked for. None leaves it to the cluster.
    """

    world_size: int
    num_nodes: int = 1
    device: Device = "gpu"
    gpu_type: str | None = None
    gpu_memory_bytes: int | None = None
    gpu_capability: float | None = None
    cpus_per_rank: int = 1
    memory_per_rank_bytes: int | None = None
    time_s: int | None = None

    @property
    def ranks_per_node(self) -> int:
        return self.world_size // self.num_nodes

    @property
    def cpus_per_node(self) -> int:
        return self.ranks_per_node * self.cpus_per_rank

    @property
    def memory_per_node_bytes(self) -> int | None:
        return self.memory_per_rank_bytes and self.memory_per_rank_bytes * self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Item:
    """One run: the words after `samestep`, without --out, and its folder below that of the jobs."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One job, or one array of jobs with the same needs, an item each."""

    name: str
    engine: str
    command: Command
    items: tuple[Item, ...]
    needs: Needs
    python: str
    """The interpreter that has Samestep, seen from where the job runs."""
    workdir: str
    """Where the user stood: relative paths in the words are seen from there."""
    home: str
    """The folder of all jobs."""
    environment: str | None = None
    """Where nothing is shared: a conda env.yml, a tarball of an environment, or a container image."""
    transfer: tuple[str, ...] = ()
    """Where nothing is shared: the files that go with the job."""
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """For the engine, by its own names; passed through."""
    lead_s: int = 120
    """How long before the time limit a training is asked to save and leave."""
    checkpoint_every_s: int = 3600
    """Where only an ended job can be saved (HTCondor): how long it may run before it ends for that."""

    @property
    def environment_file(self) -> str | None:
        """The environment, if it is a file that goes with the job rather than an image."""
        is_file = self.environment is not None and self.environment.endswith((*TARBALLS, *CONDA_FILES))
        return self.environment if is_file else None

    @property
    def label(self) -> str:
        """What the job is called in the queue, among those of other people."""
        name = f"{Path(self.home).name}-{self.name}"
        return "".join(letter if letter.isprintable() else "?" for letter in name)

    @property
    def may_go_on(self) -> bool:
        """Whether a job that was stopped can be started again and go on; only a training can."""
        return self.command == "train"

    def folder_in(self, folder: Path) -> Path:
        """Where the files of this request are kept, in the folder of all jobs."""
        return folder / "jobs" / self.name

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, self.to_json())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> "Request":
        fields = read_json(folder / FILE)
        if fields is None:
            raise LaunchError(
                f"{folder} holds no {FILE} that can be read; jobs are made with `samestep submit`."
            )
        fields["items"] = tuple(
            Item(name=item["name"], words=tuple(item["words"])) for item in fields["items"]
        )
        fields["needs"] = Needs(**fields["needs"])
        fields["transfer"] = tuple(fields["transfer"])
        return cls(**fields)


def nodes_for(world_size: int, per_node: int) -> int:
    """On how many nodes so many ranks go, equally many on each, at most `per_node`."""
    nodes = -(-world_size // per_node)
    if world_size % nodes:
        raise ConfigError(
            f"{world_size} ranks were asked for with --gpus-per-node {per_node}; {nodes} nodes cannot have "
            f"equally many of them: choose a number of ranks that {per_node} divides."
        )
    return nodes


def seconds_of(text: str) -> int:
    """A time such as `90s`, `45m`, `2h`, `1d`, `1:30:00` or `1-12:00:00`; else a ValueError."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip()):
        seconds = float(match[1]) * _UNITS_S[match[2]]
    elif match := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text.strip()):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = 86400 * days + 3600 * hours + 60 * minutes + rest
    else:
        raise ValueError(f"{text!r} is no time; write it as 45m, 2h, 1d or HH:MM:SS.")
    if seconds < 1:
        raise ValueError(f"{text!r} is less than a second.")
    return int(seconds)


def bytes_of(text: str) -> int:
    """An amount of memory such as `512M` or `16G`; a ValueError says what it is not."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no amount of memory; write it as 512M or 16G.")
    return int(float(match[1]) * _UNITS_BYTES[match[2].upper()])


def clock(seconds: float) -> str:
    """Seconds as D-HH:MM:SS, which people and Slurm read."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{days}-{text}" if days else text


def one_line(what: str, value: str) -> str:
    """The value, refused if it cannot stand in one line of a file that an engine reads."""
    if not value or not value.isprintable():
        raise ConfigError(
            f"The {what} is {value!r}; it must be one line of printable text, and not empty: choose another."
        )
    return value
