"""Plan: from what a user asked for to requests, one for each world size. Pure but for looking at files.

A training becomes one job a world size, or an array of them where settings are swept; a verification or a
scaling study is one job, on the most ranks that it compares.
"""

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from samestep.cluster.request import Command, Device, Item, Needs, Request, nodes_for, one_line
from samestep.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for, on the command line."""

    engine: str
    command: Command
    target: tuple[str, ...]
    """One TARGET, or `python script.py ARGS`."""
    worlds: tuple[int, ...]
    settings: tuple[str, ...] = ()
    """Further options of the command, word by word."""
    sweep: Mapping[str, Sequence[str]] = field(default_factory=dict)
    per_node: int = 8
    device: Device = "gpu"
    gpu_type: str | None = None
    gpu_memory_bytes: int | None = None
    gpu_capability: float | None = None
    cpus_per_rank: int = 1
    memory_per_rank_bytes: int | None = None
    time_s: Mapping[int, int] = field(default_factory=dict)
    """The time limit by world size; those that are missing have none."""
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    environment: str | None = None
    transfer: tuple[str, ...] = ()


def requests_of(wish: Wish, *, home: Path, workdir: Path) -> list[Request]:
    """The requests; the smallest world first."""
    _check_gpus(wish)
    if wish.command == "train":
        return [_request(wish, home, workdir, world, _trainings(wish, world)) for world in wish.worlds]
    if wish.sweep:
        raise ConfigError(f"--sweep was given for --run {wish.command}; only trainings can be swept.")
    most = max(wish.worlds)
    words = [wish.command, "--gpus", ",".join(map(str, wish.worlds)), *_rest(wish)]
    request = _request(wish, home, workdir, most, [Item(name=wish.command, words=tuple(words))])
    if request.needs.num_nodes > 1:
        raise ConfigError(
            f"--run {wish.command} with {most} ranks needs {request.needs.num_nodes} nodes of "
            f"{wish.per_node} GPUs; it runs on one: ask for at most {wish.per_node}, or raise "
            "--gpus-per-node."
        )
    return [request]


def _trainings(wish: Wish, world: int) -> list[Item]:
    name = f"{world}-rank{'s' * (world > 1)}"
    items = []
    for values in itertools.product(*wish.sweep.values()):
        chosen = [f"{key}={value}" for key, value in zip(wish.sweep, values, strict=True)]
        words = [
            "train",
            "--gpus",
            str(world),
            *(w for text in chosen for w in ("--set", text)),
            *_rest(wish),
        ]
        items.append(Item(name="-".join([name, *map(_slug, chosen)]), words=tuple(words)))
    if len({item.name for item in items}) < len(items):
        raise ConfigError("Two settings of --sweep lead to folders of the same name: name each value once.")
    return items


def _rest(wish: Wish) -> list[str]:
    """The words that are the same for all: threads, settings, and what is to run."""
    *program, last = wish.target
    target = [last] if not program else ["--", *program, last]
    if wish.engine == "htcondor":
        target = _as_sent(wish, target)
    return ["--threads", str(wish.cpus_per_rank), *wish.settings, *target]


def _as_sent(wish: Wish, target: list[str]) -> list[str]:
    """The target as it is called where its file was sent to."""
    sent = {path: Path(path).name for path in files_of(wish.target)}
    return [re.sub(r"^(.*\.(?:py|ya?ml))", lambda m: sent.get(m[1], m[1]), word) for word in target]


def files_of(target: Sequence[str]) -> list[str]:
    """The files that a target names: a script or a task's own file."""
    found = []
    for word in target:
        path = word if Path(word).suffix in (".py", ".yaml", ".yml") else word.rpartition(":")[0]
        if path and Path(path).is_file():
            found.append(path)
    return found


def _request(wish: Wish, home: Path, workdir: Path, world: int, items: list[Item]) -> Request:
    needs = Needs(
        world_size=world,
        num_nodes=1 if wish.engine == "local" else nodes_for(world, wish.per_node),
        device=wish.device,
        gpu_type=wish.gpu_type,
        gpu_memory_bytes=wish.gpu_memory_bytes,
        gpu_capability=wish.gpu_capability,
        cpus_per_rank=wish.cpus_per_rank,
        memory_per_rank_bytes=wish.memory_per_rank_bytes,
        time_s=wish.time_s.get(world),
    )
    is_sent = wish.engine == "htcondor"
    if not is_sent and (wish.transfer or wish.environment):
        raise ConfigError(
            f"--transfer and --environment are for pools that share no files, and --on is {wish.engine}: "
            "leave them out."
        )
    request = Request(
        name=f"{world}-rank{'s' * (world > 1)}" if wish.command == "train" else wish.command,
        engine=wish.engine,
        command=wish.command,
        items=tuple(items),
        needs=needs,
        python=sys.executable,
        workdir=str(workdir),
        home=str(home),
        env=wish.env,
        options=wish.options,
        environment=wish.environment,
        transfer=tuple(map(_full, (*files_of(wish.target), *wish.transfer))) if is_sent else (),
        lead_s=lead_of(needs.time_s),
    )
    file = request.environment_file
    return request if file is None else replace(request, environment=_full(file))


def _check_gpus(wish: Wish) -> None:
    """Refuse wishes about GPUs that the engine, or a job without any, would not hear."""
    memory, capability = wish.gpu_memory_bytes, wish.gpu_capability
    own = {"--gpu-memory": memory, "--gpu-capability": capability}
    given = [name for name, value in own.items() if value is not None]
    if given and wish.engine != "htcondor":
        raise ConfigError(
            f"{' and '.join(given)}: only HTCondor chooses GPUs by that, and --on is {wish.engine}: "
            "name a kind with --gpu-type, or nodes that have it by an option of the scheduler."
        )
    given += ["--gpu-type"] if wish.gpu_type is not None else []
    if given and wish.device == "cpu":
        raise ConfigError(f"--cpu asks for no GPUs, and {' and '.join(given)} for some: leave one out.")


def _full(path: str) -> str:
    """The full path of a file that goes with the job."""
    if not Path(path).exists():
        raise ConfigError(f"{path} is to go with the job, but nothing is there: correct the path.")
    return str(Path(path).resolve())


def lead_of(time_s: int | None) -> int:
    """How long before its time limit a training is told: two minutes, of short ones a quarter."""
    return 120 if time_s is None else min(120, max(10, time_s // 4))


def sweep_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """The settings and their values in `K=V1,V2,…`."""
    found: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise ConfigError(f"--sweep {text} names no values: write K=V1,V2, as in --sweep lr=0.1,0.2.")
        found[one_line("setting of --sweep", key)] = values.split(",")
    return found


def pairs_of(option: str, texts: Sequence[str]) -> dict[str, str]:
    """The names and values in `K=V`; a value may be anything, lines included."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"{option} {text!r} has no name or no value: write NAME=VALUE.")
        found[name] = value
    return found


def _slug(text: str) -> str:
    """A setting as part of a folder's name."""
    return re.sub(r"[^\w.=+-]+", "_", text, flags=re.ASCII)
